# SPDX-License-Identifier: Apache-2.0
"""Calls of two parties, interleaved in one process."""
import time

from tileproof.engines.cell import NotServed, Variant  # noqa: F401


def settle(limit=0.5):
    """Waits until no thread of this process spins. Every pool here, ours too, keeps its workers spinning for a
    while after a call, on the core that the next party needs."""
    end = time.perf_counter() + limit
    while time.perf_counter() < end:
        cpu, wall = time.process_time(), time.perf_counter()
        time.sleep(0.002)
        if time.process_time() - cpu < 0.1 * (time.perf_counter() - wall):
            return


def turn(variant, calls):
    """Mean wall and CPU seconds of a call, after one that is not timed and brings data and threads back."""
    variant.reset()
    settle()
    variant.run()
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(calls):
        variant.run()
    wall_end = time.perf_counter()
    return (wall_end - wall) / calls, (time.process_time() - cpu) / calls


def calls_for(variant, seconds=0.004, limit=20):
    """How many calls make a turn of at least so many seconds."""
    once, _ = turn(variant, 1)
    return max(1, min(limit, int(seconds / once) + 1))


def fastest(variants, tries=3):
    """The variant with the least time of a few turns: a peer's best path, found by timing it."""
    if len(variants) == 1:
        return variants[0]
    calls = {v.name: calls_for(v) for v in variants}
    best = {v.name: min(turn(v, calls[v.name])[0] for _ in range(tries)) for v in variants}
    return min(variants, key=lambda v: best[v.name])


def compare(ours, theirs, seconds, min_turns, max_turns):
    """Turns in pairs, A B, B A, ... until the seconds are over; lists of (wall, cpu) of both."""
    calls = {id(v): calls_for(v) for v in (ours, theirs)}
    times = {id(ours): [], id(theirs): []}
    if ours is theirs:
        raise ValueError("an A/A control needs two variants")
    end = time.perf_counter() + seconds
    while len(times[id(ours)]) < min_turns or (time.perf_counter() < end and len(times[id(ours)]) < max_turns):
        order = (ours, theirs) if len(times[id(ours)]) % 2 == 0 else (theirs, ours)
        for variant in order:
            times[id(variant)].append(turn(variant, calls[id(variant)]))
    return times[id(ours)], times[id(theirs)]
