# SPDX-License-Identifier: Apache-2.0
"""Arguments whose owner lets go of them while a call runs."""
import gc
import threading


def during(call, arrays, copy, spoiled):
    """call(*copies), which another thread lets go of once the call has them; what is free then is written to, by spoiled(array)."""
    box, begun = [copy(x) for x in arrays], threading.Event()

    def let_go():
        begun.wait()
        box.clear()
        gc.collect()
        return [spoiled(x) for x in arrays * 4]

    def given():
        yield from box
        begun.set()

    other = threading.Thread(target=let_go)
    other.start()
    got = call(*given())
    other.join()
    return got
