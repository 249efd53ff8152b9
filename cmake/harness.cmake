# SPDX-License-Identifier: Apache-2.0
# What proof, the tool and the tests share: tensors of a problem, the oracle, timing, files. It sees tileproof.h alone and
# is not installed: libtileproof_proof takes its objects in.
file(GLOB harness_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/harness/*.c)
add_library(tileproof_harness_objects OBJECT ${harness_sources})
target_include_directories(tileproof_harness_objects PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include)
add_library(tileproof_harness STATIC $<TARGET_OBJECTS:tileproof_harness_objects>)
target_include_directories(tileproof_harness PUBLIC ${CMAKE_SOURCE_DIR})
target_link_libraries(tileproof_harness PUBLIC tileproof_static ${CMAKE_DL_LIBS})
