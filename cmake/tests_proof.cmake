# SPDX-License-Identifier: Apache-2.0
# Tests of libtileproof_proof: tests/proof/test_*.c, and the fuzz target's corpus by a plain driver.
file(GLOB proof_tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/proof/test_*.c)
add_library(proof_support STATIC ${CMAKE_SOURCE_DIR}/tests/proof/support.c)
target_include_directories(proof_support PRIVATE ${CMOCKA_INCLUDE})
target_compile_definitions(proof_support PRIVATE OLD_LOCK="${CMAKE_SOURCE_DIR}/tests/proof/old.lock")
target_link_libraries(proof_support PUBLIC tileproof_proof_static)
foreach(source ${proof_tests})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_include_directories(${name} PRIVATE ${CMOCKA_INCLUDE})
  target_link_libraries(${name} PRIVATE proof_support tileproof_proof_static ${CMOCKA_LIBRARY})
  string(REPLACE "test_" "" short ${name})
  add_test(NAME ${short} COMMAND ${name})
endforeach()

# Their allocations go through memory.c, which lets each of them fail.
foreach(name test_proof_memory test_proof_memory_lock test_proof_memory_qualify test_proof_memory_harness)
  target_sources(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/proof/memory.c)
  target_include_directories(${name} PRIVATE ${JANSSON_INCLUDE})
  target_link_options(${name} PRIVATE
    -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup,--wrap=posix_memalign,--wrap=free)
endforeach()
target_link_libraries(test_proof_memory_harness PRIVATE tileproof_harness)
foreach(name test_proof_memory test_cache_model)
  target_compile_definitions(${name} PRIVATE TILEPROOF_MODELS="${CMAKE_SOURCE_DIR}/models")
endforeach()
target_include_directories(test_json PRIVATE ${JANSSON_INCLUDE})

# Files of the tool, without the tool, and with calls of the system that fail.
set(cli ${CMAKE_SOURCE_DIR}/cli)
target_sources(test_journal_calls PRIVATE ${cli}/qualify/journal.c ${cli}/qualify/journal_text.c ${cli}/tool/lines.c)
foreach(name test_file_calls test_journal_calls)
  target_sources(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/proof/calls.c ${cli}/tool/files.c ${cli}/output.c ${cli}/amounts.c
    ${cli}/terminal/progress.c ${cli}/terminal/stop.c
    ${cli}/tool/models.c ${cli}/tool/nearest.c)
  target_link_libraries(${name} PRIVATE tileproof_harness)
  target_include_directories(${name} PRIVATE ${cli} ${CMAKE_SOURCE_DIR} ${JANSSON_INCLUDE})
  target_link_options(${name} PRIVATE -Wl,--wrap=fsync,--wrap=rename,--wrap=fdopen,--wrap=flock,--wrap=open)
endforeach()

if(TILEPROOF_CLI)
  add_test(NAME model_cli COMMAND bash ${CMAKE_SOURCE_DIR}/tests/tools/model.sh $<TARGET_FILE:tileproof_cli>)
  add_test(NAME qualify COMMAND bash ${CMAKE_SOURCE_DIR}/tests/tools/qualify.sh $<TARGET_FILE:tileproof_cli>)
  add_test(NAME canary COMMAND bash ${CMAKE_SOURCE_DIR}/tests/tools/canary.sh $<TARGET_FILE:tileproof_cli>
    $<TARGET_FILE:tileproof_shared>)
  add_test(NAME lock_cli COMMAND bash ${CMAKE_SOURCE_DIR}/tests/tools/lock.sh $<TARGET_FILE:tileproof_cli>
    ${CMAKE_SOURCE_DIR}/tests/proof/old.lock)
  add_test(NAME files COMMAND bash ${CMAKE_SOURCE_DIR}/tests/tools/files.sh $<TARGET_FILE:tileproof_cli>)
  add_test(NAME report_cli COMMAND bash ${CMAKE_SOURCE_DIR}/tests/tools/report.sh $<TARGET_FILE:tileproof_cli>)
  add_test(NAME trace_cli COMMAND bash ${CMAKE_SOURCE_DIR}/tests/tools/trace.sh $<TARGET_FILE:tileproof_cli>)
  add_test(NAME trace_summary COMMAND bash ${CMAKE_SOURCE_DIR}/tests/tools/trace_summary.sh $<TARGET_FILE:tileproof_cli>)
  add_test(NAME capacity_cli COMMAND bash ${CMAKE_SOURCE_DIR}/tests/tools/capacity.sh $<TARGET_FILE:tileproof_cli>
    ${CMAKE_SOURCE_DIR}/models)
  add_test(NAME replay_cli COMMAND bash ${CMAKE_SOURCE_DIR}/tests/tools/replay.sh $<TARGET_FILE:tileproof_cli>
    ${CMAKE_SOURCE_DIR}/models)
  add_test(NAME kv_cache_cli COMMAND bash ${CMAKE_SOURCE_DIR}/tests/tools/kv_cache.sh $<TARGET_FILE:tileproof_cli>
    ${CMAKE_SOURCE_DIR}/models)
  # Alerts on metrics of a server in each state of an incident. Says "not run here" where promtool is missing.
  add_executable(ops_server ${CMAKE_SOURCE_DIR}/tests/ops/server.c)
  target_link_libraries(ops_server PRIVATE tileproof_proof_static)
  add_test(NAME ops COMMAND bash ${CMAKE_SOURCE_DIR}/tests/ops/run.sh $<TARGET_FILE:tileproof_cli> $<TARGET_FILE:ops_server>
    ${CMAKE_SOURCE_DIR}/ops)
  set_tests_properties(ops PROPERTIES SKIP_RETURN_CODE 77)
  add_test(NAME ops_units COMMAND bash ${CMAKE_SOURCE_DIR}/tests/ops/units.sh $<TARGET_FILE:tileproof_cli> ${CMAKE_SOURCE_DIR}/ops)
  add_test(NAME incident COMMAND bash ${CMAKE_SOURCE_DIR}/tests/ops/incident.sh $<TARGET_FILE:tileproof_cli>
    $<TARGET_FILE:example_serve> ${CMAKE_SOURCE_DIR}/ops)
  add_test(NAME model_shipped COMMAND python3 ${CMAKE_SOURCE_DIR}/tests/proof/shipped.py
    $<TARGET_FILE:tileproof_cli> ${CMAKE_SOURCE_DIR}/models)
endif()
if(NOT TILEPROOF_SANITIZE)
  add_test(NAME header_proof COMMAND bash ${CMAKE_SOURCE_DIR}/tests/api/header.sh ${CMAKE_SOURCE_DIR}
    $<TARGET_FILE:tileproof_proof_shared> $<TARGET_FILE:tileproof_proof_static> tileproof_proof.h
    "libm libjansson libtileproof")
endif()

# The examples of a server and of a runner are tests, too.
add_executable(example_runner ${CMAKE_SOURCE_DIR}/examples/runner.c)
target_link_libraries(example_runner PRIVATE m)
if(TILEPROOF_CLI)
  add_test(NAME runner COMMAND bash ${CMAKE_SOURCE_DIR}/tests/tools/runner.sh $<TARGET_FILE:tileproof_cli> $<TARGET_FILE:example_runner>)
endif()
add_executable(example_serve ${CMAKE_SOURCE_DIR}/examples/serve.c)
target_link_libraries(example_serve PRIVATE tileproof_proof_static)
add_test(NAME serve COMMAND bash ${CMAKE_SOURCE_DIR}/tests/tools/serve.sh $<TARGET_FILE:example_serve>
  ${CMAKE_SOURCE_DIR}/models)

foreach(kind model lock)
  add_executable(fuzz_${kind}_replay ${fuzz_dir}/fuzz_${kind}.c ${fuzz_dir}/replay.c)
  target_link_libraries(fuzz_${kind}_replay PRIVATE tileproof_proof_static)
endforeach()
add_test(NAME fuzz_lock COMMAND fuzz_lock_replay ${fuzz_dir}/lock)
add_test(NAME fuzz_model COMMAND fuzz_model_replay ${fuzz_dir}/model ${CMAKE_SOURCE_DIR}/models)
# What the tool reads line by line: its readers alone.
set(lines_sources ${fuzz_dir}/fuzz_lines.c ${CMAKE_SOURCE_DIR}/cli/tool/lines.c ${CMAKE_SOURCE_DIR}/cli/tool/trace_calls.c
  ${CMAKE_SOURCE_DIR}/cli/tool/line_stream.c ${CMAKE_SOURCE_DIR}/cli/trace/sketch.c ${CMAKE_SOURCE_DIR}/cli/trace/summary.c
  ${CMAKE_SOURCE_DIR}/cli/replay/read.c)
add_executable(fuzz_lines_replay ${lines_sources} ${fuzz_dir}/replay.c)
target_include_directories(fuzz_lines_replay PRIVATE ${CMAKE_SOURCE_DIR}/cli ${CMAKE_SOURCE_DIR} ${JANSSON_INCLUDE})
target_link_libraries(fuzz_lines_replay PRIVATE tileproof_proof_static)
add_test(NAME fuzz_lines COMMAND fuzz_lines_replay ${fuzz_dir}/lines)
set(journal_sources ${fuzz_dir}/fuzz_journal.c ${CMAKE_SOURCE_DIR}/cli/qualify/journal_text.c ${CMAKE_SOURCE_DIR}/cli/tool/lines.c)
add_executable(fuzz_journal_replay ${journal_sources} ${fuzz_dir}/replay.c)
target_include_directories(fuzz_journal_replay PRIVATE ${CMAKE_SOURCE_DIR}/cli ${CMAKE_SOURCE_DIR} ${JANSSON_INCLUDE})
target_link_libraries(fuzz_journal_replay PRIVATE tileproof_proof_static)
add_test(NAME fuzz_journal COMMAND fuzz_journal_replay ${fuzz_dir}/journal)
set(report_sources)
foreach(name output amounts terminal/progress bench/problem lock/select tool/files tool/lines tool/shape report/input report/input_lock
    report/cells report/html report/data report/verdict report/matrix report/heat
    report/tables report/environment plot/read)
  list(APPEND report_sources ${CMAKE_SOURCE_DIR}/cli/${name}.c)
endforeach()
add_executable(fuzz_report_replay ${fuzz_dir}/fuzz_report.c ${report_sources} ${fuzz_dir}/replay.c)
target_include_directories(fuzz_report_replay PRIVATE ${CMAKE_SOURCE_DIR}/cli ${CMAKE_SOURCE_DIR} ${JANSSON_INCLUDE})
target_link_libraries(fuzz_report_replay PRIVATE tileproof_harness tileproof_proof_static)
add_test(NAME fuzz_report COMMAND fuzz_report_replay ${fuzz_dir}/report ${fuzz_dir}/lock)
set(runner_sources ${fuzz_dir}/fuzz_runner.c ${CMAKE_SOURCE_DIR}/cli/engine/wire.c)
add_executable(fuzz_runner_replay ${runner_sources} ${fuzz_dir}/replay.c)
target_include_directories(fuzz_runner_replay PRIVATE ${CMAKE_SOURCE_DIR}/cli ${CMAKE_SOURCE_DIR}/include)
add_test(NAME fuzz_runner COMMAND fuzz_runner_replay ${fuzz_dir}/runner)
# libFuzzer is clang's. The library is compiled again, so that its branches are seen.
if(TILEPROOF_FUZZ)
  foreach(kind lines runner)
    add_executable(fuzz_${kind} ${${kind}_sources})
    target_include_directories(fuzz_${kind} PRIVATE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/cli ${CMAKE_SOURCE_DIR} ${JANSSON_INCLUDE})
    target_compile_options(fuzz_${kind} PRIVATE -fsanitize=fuzzer,address,undefined)
    target_link_options(fuzz_${kind} PRIVATE -fsanitize=fuzzer,address,undefined)
    target_link_libraries(fuzz_${kind} PRIVATE ${JANSSON_LIBRARY} m)
  endforeach()
  foreach(kind model lock journal report)
    add_executable(fuzz_${kind} ${fuzz_dir}/fuzz_${kind}.c ${proof_sources} ${harness_sources})
    target_include_directories(fuzz_${kind} PRIVATE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/cli ${CMAKE_SOURCE_DIR} ${JANSSON_INCLUDE})
    target_compile_options(fuzz_${kind} PRIVATE -fsanitize=fuzzer,address,undefined)
    target_link_options(fuzz_${kind} PRIVATE -fsanitize=fuzzer,address,undefined)
    target_link_libraries(fuzz_${kind} PRIVATE tileproof_static ${JANSSON_LIBRARY} ${CMAKE_DL_LIBS} m)
  endforeach()
  target_sources(fuzz_journal PRIVATE ${CMAKE_SOURCE_DIR}/cli/qualify/journal_text.c ${CMAKE_SOURCE_DIR}/cli/tool/lines.c)
  target_sources(fuzz_report PRIVATE ${report_sources})
endif()
