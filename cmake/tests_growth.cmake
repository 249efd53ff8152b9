# SPDX-License-Identifier: Apache-2.0
# Programs and libraries of different versions: tests/growth/growth.h. The headers of the later version are made by a script.
set(grown ${CMAKE_BINARY_DIR}/grown)
foreach(header tileproof.h tileproof_backend.h tileproof_proof.h)
  add_custom_command(OUTPUT ${grown}/${header}
    COMMAND python3 ${CMAKE_SOURCE_DIR}/scripts/grow_header.py ${CMAKE_SOURCE_DIR}/include/${header} ${grown}/${header}
    DEPENDS ${CMAKE_SOURCE_DIR}/scripts/grow_header.py ${CMAKE_SOURCE_DIR}/include/${header} VERBATIM)
  list(APPEND grown_headers ${grown}/${header})
endforeach()
add_custom_target(grown_headers DEPENDS ${grown_headers})

# The library with these headers. Kernel functions know no struct of the API.
add_library(tileproof_grown SHARED ${sources} ${CMAKE_BINARY_DIR}/build_hash.c ${kernel_objects})
target_include_directories(tileproof_grown BEFORE PRIVATE ${grown})
target_link_libraries(tileproof_grown PRIVATE tileproof_flags m ${pool_libraries} Threads::Threads)
target_compile_options(tileproof_grown PRIVATE -Wno-missing-field-initializers)
add_dependencies(tileproof_grown grown_headers)

# growth_old: a program of 0.2.0 with a later library. growth_new: a later program with this library. backend_old and
# backend_new: a backend in place of a program.
foreach(kind growth backend)
  set(first ${kind})
  if(kind STREQUAL growth)
    set(first core)
  endif()
  foreach(age old new)
    add_executable(${kind}_${age} ${CMAKE_SOURCE_DIR}/tests/growth/${first}.c ${CMAKE_SOURCE_DIR}/tests/growth/growth.c
      ${CMAKE_SOURCE_DIR}/tests/support/guard.c)
    target_include_directories(${kind}_${age} PRIVATE ${CMAKE_SOURCE_DIR}/tests ${CMOCKA_INCLUDE})
    target_compile_options(${kind}_${age} PRIVATE -Wno-missing-field-initializers)
    add_test(NAME ${kind}_${age} COMMAND ${kind}_${age})
  endforeach()
  target_include_directories(${kind}_old BEFORE PRIVATE ${CMAKE_SOURCE_DIR}/include)
  target_include_directories(${kind}_new BEFORE PRIVATE ${grown})
  target_link_libraries(${kind}_old PRIVATE tileproof_grown ${CMOCKA_LIBRARY} m)
  target_link_libraries(${kind}_new PRIVATE tileproof_shared ${CMOCKA_LIBRARY} m)
  add_dependencies(${kind}_new grown_headers)
endforeach()
