# SPDX-License-Identifier: Apache-2.0
# libtileproof_proof, shared and static: models, locks, and the harness inside. It alone needs jansson.
find_path(JANSSON_INCLUDE jansson.h)
find_library(JANSSON_LIBRARY jansson)
if(NOT JANSSON_INCLUDE OR NOT JANSSON_LIBRARY)
  message(FATAL_ERROR "jansson was not found (Debian: libjansson-dev). "
                      "-DTILEPROOF_CLI=OFF -DTILEPROOF_PROOF=OFF builds the core without it.")
endif()
file(GLOB proof_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/proof/*.c)
add_library(tileproof_proof_objects OBJECT ${proof_sources})
target_include_directories(tileproof_proof_objects PRIVATE
  ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include ${JANSSON_INCLUDE})
set(proof_objects $<TARGET_OBJECTS:tileproof_proof_objects> $<TARGET_OBJECTS:tileproof_harness_objects>)
# The static library is one object, so that names without tp_, which are the harness's, stay inside.
set(proof_object ${CMAKE_BINARY_DIR}/tileproof_proof.o)
add_custom_command(OUTPUT ${proof_object}
  COMMAND ${CMAKE_C_COMPILER} -r -nostdlib -o ${proof_object}.all ${proof_objects}
  COMMAND ${CMAKE_OBJCOPY} --wildcard --keep-global-symbol=tp_* ${proof_object}.all ${proof_object}
  DEPENDS ${proof_objects} COMMAND_EXPAND_LISTS VERBATIM)
set_source_files_properties(${proof_object} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
add_library(tileproof_proof_shared SHARED ${proof_objects})
add_library(tileproof_proof_static STATIC ${proof_object})
foreach(suffix shared static)
  set_target_properties(tileproof_proof_${suffix} PROPERTIES
    LINKER_LANGUAGE C OUTPUT_NAME tileproof_proof EXPORT_NAME proof_${suffix}
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  target_include_directories(tileproof_proof_${suffix} PUBLIC
    $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(tileproof_proof_${suffix} PUBLIC tileproof_${suffix})
endforeach()
target_link_libraries(tileproof_proof_shared PRIVATE ${JANSSON_LIBRARY} ${CMAKE_DL_LIBS} m)
target_link_libraries(tileproof_proof_static PUBLIC ${CMAKE_DL_LIBS} $<BUILD_INTERFACE:${JANSSON_LIBRARY}> $<INSTALL_INTERFACE:jansson>)

if(EXISTS ${CMAKE_SOURCE_DIR}/tests/models/shim.c) # a source distribution has no tests
  # The flat functions that `make test-torch` calls from Python, to compare models with transformers. Not installed.
  add_library(tileproof_models MODULE ${CMAKE_SOURCE_DIR}/tests/models/shim.c)
  set_target_properties(tileproof_models PROPERTIES OUTPUT_NAME tileproof_models)
  target_link_libraries(tileproof_models PRIVATE tileproof_proof_shared)
endif()
