# SPDX-License-Identifier: Apache-2.0
# Each tests/FOLDER/test_*.c is one cmocka program; scripts test what is not C.
find_path(CMOCKA_INCLUDE cmocka.h)
find_library(CMOCKA_LIBRARY cmocka)
if(NOT CMOCKA_INCLUDE OR NOT CMOCKA_LIBRARY)
  message(FATAL_ERROR "cmocka was not found (Debian: libcmocka-dev). -DTILEPROOF_TESTS=OFF builds without tests.")
endif()
file(GLOB test_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/*/test_*.c)
list(FILTER test_sources EXCLUDE REGEX /tests/proof/)
file(GLOB test_support CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/support/*.c)
add_library(test_support STATIC ${test_support})
target_link_libraries(test_support PUBLIC tileproof_flags tileproof_harness ${CMOCKA_LIBRARY})
target_include_directories(test_support PUBLIC ${CMAKE_SOURCE_DIR}/tests ${CMAKE_SOURCE_DIR}/cli ${CMOCKA_INCLUDE})
foreach(source ${test_sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE test_support)
  string(REPLACE "test_" "" short ${name})
  add_test(NAME ${short} COMMAND ${name})
  set_tests_properties(${short} PROPERTIES TIMEOUT 900)
endforeach()
# What the library frees goes through the test.
target_link_options(test_forked PRIVATE -Wl,--wrap=free)
if(TILEPROOF_SANITIZE STREQUAL "thread")
  # The thread sanitizer's own locks hang in a child that was forked while threads were at work; ctest names it as not run.
  set_tests_properties(forked PROPERTIES DISABLED TRUE)
endif()
# Every kernel function by itself; --bench times each.
file(GLOB kernel_test_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/kernels/*.c)
add_executable(kernel_functions ${kernel_test_sources})
target_link_libraries(kernel_functions PRIVATE test_support)
add_test(NAME kernel_functions COMMAND kernel_functions)
# What draws problems for check --random, with a stand-in for what runs them.
foreach(source random_draw random_shapes random_traits random_shrink random_cover)
  target_sources(test_random PRIVATE ${CMAKE_SOURCE_DIR}/cli/check/${source}.c)
  target_sources(test_random_isolated PRIVATE ${CMAKE_SOURCE_DIR}/cli/check/${source}.c)
endforeach()
set_tests_properties(random PROPERTIES TIMEOUT 300)
# The child processes of check --random, with a stand-in for what they try.
foreach(source random random_isolated)
  target_sources(test_random_isolated PRIVATE ${CMAKE_SOURCE_DIR}/cli/check/${source}.c)
endforeach()
target_link_options(test_random_isolated PRIVATE -Wl,--wrap=fork)
# What check runs calls with.
target_link_options(test_attempt PRIVATE -Wl,--wrap=tp_plan_run,--wrap=tp_plan_workspace)

if(TARGET tileproof_proof_static)
  include(cmake/tests_proof.cmake)
endif()

include(cmake/tests_growth.cmake)
if(TARGET tileproof_opencl_static)
  include(cmake/tests_opencl.cmake)
endif()

# The library with one more kernel set on top of its table, which serves one dtype and lacks most functions.
add_library(tileproof_one_dtype STATIC ${sources} ${CMAKE_BINARY_DIR}/build_hash.c ${CMAKE_SOURCE_DIR}/tests/sets/bf16_only.c
  ${kernel_objects})
target_compile_definitions(tileproof_one_dtype PRIVATE TILEPROOF_TEST_SET)
target_link_libraries(tileproof_one_dtype PRIVATE tileproof_flags)
add_executable(one_dtype ${CMAKE_SOURCE_DIR}/tests/sets/one_dtype.c)
target_compile_definitions(one_dtype PRIVATE TILEPROOF_TEST_SET LIBRARY_BEFORE="$<TARGET_FILE:tileproof_shared>")
target_include_directories(one_dtype PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/tests ${CMOCKA_INCLUDE})
target_link_libraries(one_dtype PRIVATE tileproof_flags $<TARGET_FILE:test_support> $<TARGET_FILE:tileproof_harness>
  tileproof_one_dtype m ${pool_libraries} Threads::Threads ${CMOCKA_LIBRARY} ${CMAKE_DL_LIBS})
add_dependencies(one_dtype test_support tileproof_harness tileproof_shared)
add_test(NAME one_dtype COMMAND one_dtype)

# The examples are tests, too.
add_executable(example_train ${CMAKE_SOURCE_DIR}/examples/train.c)
target_link_libraries(example_train PRIVATE tileproof_static)
add_test(NAME train COMMAND bash ${CMAKE_SOURCE_DIR}/tests/tools/train.sh $<TARGET_FILE:example_train>)
add_executable(example_paged ${CMAKE_SOURCE_DIR}/examples/paged.c)
target_link_libraries(example_paged PRIVATE tileproof_static)
add_test(NAME example_paged COMMAND bash ${CMAKE_SOURCE_DIR}/tests/tools/paged_example.sh $<TARGET_FILE:example_paged>)

add_test(NAME arrows COMMAND python3 ${CMAKE_SOURCE_DIR}/scripts/check_arrows.py)
add_test(NAME lines COMMAND python3 ${CMAKE_SOURCE_DIR}/scripts/check_lines.py)
add_test(NAME links COMMAND python3 ${CMAKE_SOURCE_DIR}/scripts/check_links.py)
if(TILEPROOF_CLI)
  add_test(NAME cli COMMAND bash ${CMAKE_SOURCE_DIR}/tests/tools/cli.sh $<TARGET_FILE:tileproof_cli>)
  add_test(NAME bench COMMAND bash ${CMAKE_SOURCE_DIR}/tests/tools/bench.sh $<TARGET_FILE:tileproof_cli>)
  add_test(NAME compare COMMAND bash ${CMAKE_SOURCE_DIR}/tests/tools/compare.sh $<TARGET_FILE:tileproof_cli>)
  # random_daily has another seed each day
  add_test(NAME random_cli COMMAND bash ${CMAKE_SOURCE_DIR}/tests/tools/random.sh $<TARGET_FILE:tileproof_cli>)
  add_test(NAME random_daily COMMAND bash ${CMAKE_SOURCE_DIR}/tests/tools/random.sh $<TARGET_FILE:tileproof_cli> daily)
  set_tests_properties(random_cli random_daily PROPERTIES TIMEOUT 900)
  add_test(NAME plot COMMAND bash ${CMAKE_SOURCE_DIR}/tests/tools/plot.sh $<TARGET_FILE:tileproof_cli>)
endif()
if(NOT TILEPROOF_SANITIZE)
  add_test(NAME header COMMAND bash ${CMAKE_SOURCE_DIR}/tests/api/header.sh ${CMAKE_SOURCE_DIR}
    $<TARGET_FILE:tileproof_shared> $<TARGET_FILE:tileproof_static>)
  add_executable(functions_calls ${CMAKE_SOURCE_DIR}/tests/api/functions_calls.c)
  target_link_libraries(functions_calls PRIVATE test_support)
  add_test(NAME functions COMMAND bash ${CMAKE_SOURCE_DIR}/tests/api/functions.sh $<TARGET_FILE:functions_calls>)
  if(TILEPROOF_CLI)
    add_test(NAME install COMMAND bash ${CMAKE_SOURCE_DIR}/tests/install/run.sh ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
  endif()
  add_test(NAME spills COMMAND python3 ${CMAKE_SOURCE_DIR}/scripts/check_spills.py "$<JOIN:${kernel_objects},;>")
  if(TILEPROOF_CLI) # neither valgrind nor a count of resident pages goes with a sanitizer
    add_test(NAME bytes COMMAND bash ${CMAKE_SOURCE_DIR}/tests/tools/bytes.sh $<TARGET_FILE:tileproof_cli>)
    add_test(NAME memory COMMAND bash ${CMAKE_SOURCE_DIR}/tests/tools/memory.sh $<TARGET_FILE:tileproof_cli>)
  endif()
  include(cmake/tests_slow.cmake)
endif()

# The longest first, so that the last ones to end are short: seconds of one core.
foreach(row random_cli=40 random_daily=40 cli=30 python=20 files=15 backward_nan=12 bytes=12 qualify=10 canary=10 compare=8 bench=8
        ops=14 capacity_cli=8 verdict=6 replay_cli=8 mask_cache=5 threads=5 bound=4 guard=4 backward=4 train=4 mask_kinds=3 mask_results=3 memory=3)
  string(REPLACE "=" ";" row ${row})
  list(GET row 0 name)
  list(GET row 1 seconds)
  if(TEST ${name})
    set_tests_properties(${name} PROPERTIES COST ${seconds})
  endif()
endforeach()
