# SPDX-License-Identifier: Apache-2.0
# Tests of libtileproof_proof and of the tool: tests/proof/test_*.c, scripts, fuzz targets.
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
foreach(name test_proof_memory test_cache_model test_proof_control)
  target_compile_definitions(${name} PRIVATE TILEPROOF_MODELS="${CMAKE_SOURCE_DIR}/models")
endforeach()
target_include_directories(test_json PRIVATE ${JANSSON_INCLUDE})

# Files of the tool, with calls of the system that fail.
foreach(name test_file_calls test_journal_calls)
  target_sources(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/proof/calls.c)
  target_link_libraries(${name} PRIVATE tileproof_tool)
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

tileproof_fuzz(model tileproof_proof_static ${CMAKE_SOURCE_DIR}/models)
tileproof_fuzz(lock tileproof_proof_static)
tileproof_fuzz(lines tileproof_tool)
tileproof_fuzz(journal tileproof_tool)
tileproof_fuzz(report tileproof_tool ${fuzz_dir}/lock)
tileproof_fuzz(runner tileproof_tool)
