# SPDX-License-Identifier: Apache-2.0
# Programs and libraries of different versions: tests/growth/growth.h. The headers of the later version are made by a script.
set(grown ${CMAKE_BINARY_DIR}/grown)
foreach(header tileproof.h tileproof_backend.h tileproof_cache.h tileproof_rope.h tileproof_proof.h tileproof_opencl.h)
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
target_compile_options(tileproof_grown PRIVATE -Wno-missing-field-initializers -O1) # nothing here is timed
add_dependencies(tileproof_grown grown_headers)

# growth_old: a program of 0.2.0 with later libraries. growth_new: a later program with these libraries. growth_proof_old,
# growth_proof_new: the same of tileproof_proof.h. growth_cache_*, growth_rope_*, growth_opencl_*: of these headers. backend_old,
# backend_new: a backend in place of a program.
function(growth_test name source)
  foreach(age old new)
    add_executable(${name}_${age} ${CMAKE_SOURCE_DIR}/tests/growth/${source} ${CMAKE_SOURCE_DIR}/tests/growth/growth.c
      ${CMAKE_SOURCE_DIR}/tests/support/guard.c)
    target_include_directories(${name}_${age} PRIVATE ${CMAKE_SOURCE_DIR}/tests ${CMOCKA_INCLUDE})
    target_compile_options(${name}_${age} PRIVATE -Wno-missing-field-initializers)
    add_test(NAME ${name}_${age} COMMAND ${name}_${age})
  endforeach()
  target_include_directories(${name}_old BEFORE PRIVATE ${CMAKE_SOURCE_DIR}/include)
  target_include_directories(${name}_new BEFORE PRIVATE ${grown})
  add_dependencies(${name}_new grown_headers)
endfunction()
growth_test(growth core.c)
growth_test(backend backend.c)
growth_test(growth_cache cache.c)
growth_test(growth_rope rope.c)
foreach(name growth growth_cache growth_rope backend)
  target_link_libraries(${name}_old PRIVATE tileproof_grown ${CMOCKA_LIBRARY} m)
  target_link_libraries(${name}_new PRIVATE tileproof_shared ${CMOCKA_LIBRARY} m)
endforeach()

if(TARGET tileproof_proof_shared)
  add_library(tileproof_proof_grown SHARED ${proof_sources} ${harness_sources})
  target_include_directories(tileproof_proof_grown BEFORE PRIVATE ${grown} ${CMAKE_SOURCE_DIR} ${JANSSON_INCLUDE})
  target_link_libraries(tileproof_proof_grown PRIVATE tileproof_grown ${JANSSON_LIBRARY} ${CMAKE_DL_LIBS} m)
  target_compile_options(tileproof_proof_grown PRIVATE -Wno-missing-field-initializers -O1)
  add_dependencies(tileproof_proof_grown grown_headers)
  growth_test(growth_proof proof.c)
  target_link_libraries(growth_proof_old PRIVATE tileproof_proof_grown tileproof_grown ${CMOCKA_LIBRARY} m)
  target_link_libraries(growth_proof_new PRIVATE tileproof_proof_shared ${CMOCKA_LIBRARY} m)
endif()

# Without a device: the structs of the header are taken in and filled all the same.
if(TARGET tileproof_opencl_shared)
  add_library(tileproof_opencl_grown SHARED ${opencl_sources} ${opencl_embedded})
  target_include_directories(tileproof_opencl_grown BEFORE PRIVATE ${grown} ${CMAKE_SOURCE_DIR}/opencl ${OPENCL_INCLUDE})
  target_compile_definitions(tileproof_opencl_grown PRIVATE _GNU_SOURCE)
  target_link_libraries(tileproof_opencl_grown PRIVATE m Threads::Threads ${CMAKE_DL_LIBS})
  target_compile_options(tileproof_opencl_grown PRIVATE -Wno-missing-field-initializers)
  add_dependencies(tileproof_opencl_grown grown_headers)
  growth_test(growth_opencl opencl.c)
  target_link_libraries(growth_opencl_old PRIVATE tileproof_opencl_grown tileproof_grown ${CMOCKA_LIBRARY} m)
  target_link_libraries(growth_opencl_new PRIVATE tileproof_opencl_shared tileproof_shared ${CMOCKA_LIBRARY} m)
endif()
