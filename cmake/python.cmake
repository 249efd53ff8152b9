# SPDX-License-Identifier: Apache-2.0
# The Python package: python/tileproof with its extension, one file for every Python from 3.11 on (limited API).
# In the build tree it lies whole under python/, for tests; pip makes a wheel of it by pyproject.toml.
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
file(GLOB python_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/python/src/*.c)
add_library(tileproof_python MODULE ${python_sources})
set_target_properties(tileproof_python PROPERTIES OUTPUT_NAME _core PREFIX "" SUFFIX .abi3.so
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/python/tileproof 
  INSTALL_RPATH $ORIGIN BUILD_WITH_INSTALL_RPATH ON)
target_compile_definitions(tileproof_python PRIVATE Py_LIMITED_API=0x030B0000)
target_include_directories(tileproof_python SYSTEM PRIVATE ${Python_INCLUDE_DIRS})
# The library is inside the extension and shows no symbol: another libtileproof in the process stays apart.
target_link_libraries(tileproof_python PRIVATE tileproof_proof_static)
target_link_options(tileproof_python PRIVATE -Wl,--exclude-libs,ALL -Wl,-Bsymbolic)
add_custom_target(tileproof_python_package ALL
  ${CMAKE_COMMAND} -E copy_directory ${CMAKE_SOURCE_DIR}/python/tileproof ${CMAKE_BINARY_DIR}/python/tileproof)

# A wheel carries what it needs: the extension and, beside it, jansson and the pool under the names that the linker looks for.
install(TARGETS tileproof_python LIBRARY DESTINATION tileproof COMPONENT python EXCLUDE_FROM_ALL)
foreach(library ${JANSSON_LIBRARY} ${PTHREADPOOL_LIBRARY})
  file(REAL_PATH ${library} file)
  execute_process(COMMAND ${CMAKE_OBJDUMP} -p ${file} OUTPUT_VARIABLE headers)
  string(REGEX REPLACE ".*SONAME +([^ \n]+).*" "\\1" name "${headers}")
  install(FILES ${file} DESTINATION tileproof RENAME ${name} COMPONENT python EXCLUDE_FROM_ALL)
endforeach()
if(TILEPROOF_TESTS AND NOT TILEPROOF_SANITIZE)
  # The Python that the extension was built for; it fails without NumPy. scripts/python_env.py finds or makes one that has it.
  add_test(NAME python COMMAND ${Python_EXECUTABLE} ${CMAKE_SOURCE_DIR}/python/tests/run.py numpy)
  set_tests_properties(python PROPERTIES ENVIRONMENT PYTHONPATH=${CMAKE_BINARY_DIR}/python)
endif()
