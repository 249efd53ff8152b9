# SPDX-License-Identifier: Apache-2.0
# The tool: it sees the public headers only. The goals of `bench --goals` are part of it.
file(GLOB_RECURSE cli_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/cli/*.c)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/bench/goals.txt)
file(READ ${CMAKE_SOURCE_DIR}/bench/goals.txt goals HEX)
string(REGEX REPLACE "(..)" "0x\\1," goals "${goals}")
string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n" goals "${goals}")
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/goals_text.c @ONLY CONTENT
"extern const char bench_goals_text[];
const char bench_goals_text[] = {
@goals@0};
")
# Where a device's kernels were checked: `tileproof info` says it.
set(checked_lock ${CMAKE_SOURCE_DIR}/opencl/checked.lock)
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/checked_lock.c
  COMMAND ${CMAKE_COMMAND} -DNAME=checked_lock_text -DFILES=${checked_lock} -DOUT=${CMAKE_BINARY_DIR}/checked_lock.c
    -P ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
  DEPENDS ${checked_lock} ${CMAKE_SOURCE_DIR}/cmake/embed.cmake VERBATIM)
add_executable(tileproof_cli ${cli_sources} ${CMAKE_BINARY_DIR}/goals_text.c ${CMAKE_BINARY_DIR}/checked_lock.c)
set_target_properties(tileproof_cli PROPERTIES OUTPUT_NAME tileproof)
target_link_libraries(tileproof_cli PRIVATE tileproof_harness tileproof_proof_static)
if(TARGET tileproof_opencl_static)
  target_link_libraries(tileproof_cli PRIVATE tileproof_opencl_static)
  target_compile_definitions(tileproof_cli PRIVATE TILEPROOF_OPENCL)
endif()
target_include_directories(tileproof_cli PRIVATE ${CMAKE_SOURCE_DIR}/cli ${JANSSON_INCLUDE})
