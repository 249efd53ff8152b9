# SPDX-License-Identifier: Apache-2.0
# The tool: it sees the public header only.
file(GLOB cli_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/cli/*.c)
add_executable(tileproof_cli ${cli_sources})
set_target_properties(tileproof_cli PROPERTIES OUTPUT_NAME tileproof)
target_link_libraries(tileproof_cli PRIVATE tileproof_static)
