# SPDX-License-Identifier: Apache-2.0
# The flat functions that `make peers` calls from Python. Not installed.
add_library(tileproof_peers MODULE ${CMAKE_SOURCE_DIR}/bench/peers/shim.c)
set_target_properties(tileproof_peers PROPERTIES OUTPUT_NAME tileproof_peers)
target_link_libraries(tileproof_peers PRIVATE tileproof_shared)
if(NOT TILEPROOF_SANITIZE)
  if(TILEPROOF_PYTHON) # NumPy is needed: the Python of the package's tests has it
    add_test(NAME peers COMMAND ${Python_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/peers/run.py $<TARGET_FILE:tileproof_peers>)
    set_tests_properties(peers PROPERTIES ENVIRONMENT PYTHONPATH=${CMAKE_BINARY_DIR}/python)
  else() # ctest names them as not run
    foreach(name peers python)
      add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E false)
      set_tests_properties(${name} PROPERTIES DISABLED TRUE)
    endforeach()
  endif()
endif()
