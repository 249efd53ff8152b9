# SPDX-License-Identifier: Apache-2.0
# What proof, the tool and the tests share: tensors from a problem's text, the oracle, statistics. Not installed.
file(GLOB harness_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/harness/*.c)
add_library(tileproof_harness STATIC ${harness_sources})
target_include_directories(tileproof_harness PUBLIC ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/cli)
target_link_libraries(tileproof_harness PUBLIC tileproof_static ${CMAKE_DL_LIBS})
