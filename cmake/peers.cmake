# SPDX-License-Identifier: Apache-2.0
# The flat functions that `make peers` calls from Python. Not installed.
add_library(tileproof_peers MODULE ${CMAKE_SOURCE_DIR}/bench/peers/shim.c)
set_target_properties(tileproof_peers PROPERTIES OUTPUT_NAME tileproof_peers)
target_link_libraries(tileproof_peers PRIVATE tileproof_shared)
if(TILEPROOF_TESTS AND NOT TILEPROOF_SANITIZE)
  # Says "not run here" where numpy is missing.
  add_test(NAME peers COMMAND python3 ${CMAKE_SOURCE_DIR}/tests/peers/run.py $<TARGET_FILE:tileproof_peers>)
  set_tests_properties(peers PROPERTIES SKIP_RETURN_CODE 77)
endif()
