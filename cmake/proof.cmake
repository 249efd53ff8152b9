# SPDX-License-Identifier: Apache-2.0
# libtileproof_proof, shared and static: models. It alone needs jansson.
find_path(JANSSON_INCLUDE jansson.h)
find_library(JANSSON_LIBRARY jansson)
if(NOT JANSSON_INCLUDE OR NOT JANSSON_LIBRARY)
  message(FATAL_ERROR "jansson was not found (Debian: libjansson-dev). "
                      "-DTILEPROOF_CLI=OFF -DTILEPROOF_PROOF=OFF builds the core without it.")
endif()
file(GLOB proof_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/proof/*.c)
add_library(tileproof_proof_objects OBJECT ${proof_sources})
target_include_directories(tileproof_proof_objects PRIVATE ${CMAKE_SOURCE_DIR}/include ${JANSSON_INCLUDE})
foreach(kind SHARED STATIC)
  string(TOLOWER ${kind} suffix)
  add_library(tileproof_proof_${suffix} ${kind} $<TARGET_OBJECTS:tileproof_proof_objects>)
  set_target_properties(tileproof_proof_${suffix} PROPERTIES
    OUTPUT_NAME tileproof_proof EXPORT_NAME proof_${suffix}
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  target_include_directories(tileproof_proof_${suffix} PUBLIC
    $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(tileproof_proof_${suffix} PUBLIC tileproof_${suffix})
endforeach()
target_link_libraries(tileproof_proof_shared PRIVATE ${JANSSON_LIBRARY} m)
target_link_libraries(tileproof_proof_static PUBLIC $<BUILD_INTERFACE:${JANSSON_LIBRARY}> $<INSTALL_INTERFACE:jansson>)
