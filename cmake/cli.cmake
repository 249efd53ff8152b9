# SPDX-License-Identifier: Apache-2.0
# The tool: main.c and a static library of all the rest, which tests link. The goals of `bench --goals` are part of it.
file(GLOB_RECURSE cli_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/cli/*.c)
list(REMOVE_ITEM cli_sources ${CMAKE_SOURCE_DIR}/cli/main.c)
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
# The page of `report`: a frame, its style and its script, each a file of its own.
foreach(kind html css js)
  set(file ${CMAKE_SOURCE_DIR}/cli/report/page/page.${kind})
  set(out ${CMAKE_BINARY_DIR}/report_page_${kind}.c)
  add_custom_command(OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -DNAME=report_page_${kind} -DFILES=${file} -DOUT=${out} -DHASH=ON -P ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${file} ${CMAKE_SOURCE_DIR}/cmake/embed.cmake VERBATIM)
  list(APPEND report_page ${out})
endforeach()
add_library(tileproof_tool STATIC ${cli_sources} ${report_page} ${CMAKE_BINARY_DIR}/goals_text.c ${CMAKE_BINARY_DIR}/checked_lock.c)
target_link_libraries(tileproof_tool PUBLIC tileproof_harness tileproof_proof_static)
if(TARGET tileproof_opencl_static)
  target_link_libraries(tileproof_tool PRIVATE tileproof_opencl_static)
  target_compile_definitions(tileproof_tool PRIVATE TILEPROOF_OPENCL)
endif()
target_include_directories(tileproof_tool PUBLIC ${CMAKE_SOURCE_DIR}/cli ${JANSSON_INCLUDE})
if(NOT TILEPROOF_CLI)
  return()
endif()
add_executable(tileproof_cli ${CMAKE_SOURCE_DIR}/cli/main.c)
set_target_properties(tileproof_cli PROPERTIES OUTPUT_NAME tileproof)
target_link_libraries(tileproof_cli PRIVATE tileproof_tool)

# Man pages and completions, made by the tool itself: a tool for another machine needs an emulator for that.
if(NOT CMAKE_CROSSCOMPILING OR CMAKE_CROSSCOMPILING_EMULATOR)
  set(manual_dir ${CMAKE_BINARY_DIR}/manual)
  set(tool_command $<TARGET_FILE:tileproof_cli>)
  if(CMAKE_CROSSCOMPILING)
    set(tool_command "${CMAKE_CROSSCOMPILING_EMULATOR};${tool_command}")
  endif()
  add_custom_command(OUTPUT ${manual_dir}/made
    COMMAND ${CMAKE_COMMAND} "-DTOOL=${tool_command}" -DCHANGES=${CMAKE_SOURCE_DIR}/CHANGELOG.md -DTO=${manual_dir}
      -P ${CMAKE_SOURCE_DIR}/cmake/manual.cmake
    DEPENDS tileproof_cli ${CMAKE_SOURCE_DIR}/cmake/manual.cmake ${CMAKE_SOURCE_DIR}/CHANGELOG.md VERBATIM)
  add_custom_target(tileproof_manual ALL DEPENDS ${manual_dir}/made)
endif()
