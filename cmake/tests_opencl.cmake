# SPDX-License-Identifier: Apache-2.0
# Tests of libtileproof_opencl, label device: `make test-device` installs PoCL and oclgrind for them. Where there is no OpenCL device
# they say "not run here" and ctest counts them as skipped.
add_library(opencl_shim MODULE ${CMAKE_SOURCE_DIR}/tests/opencl/shim.c)
target_include_directories(opencl_shim PRIVATE ${CMAKE_SOURCE_DIR}/tests ${OPENCL_INCLUDE})
target_compile_options(opencl_shim PRIVATE -Wno-deprecated-declarations)
target_link_libraries(opencl_shim PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
add_library(opencl_rig STATIC ${CMAKE_SOURCE_DIR}/tests/opencl/rig.c)
target_compile_definitions(opencl_rig PRIVATE TILEPROOF_SHIM="$<TARGET_FILE:opencl_shim>")
target_link_libraries(opencl_rig PUBLIC test_support tileproof_opencl_static)
target_include_directories(opencl_rig PUBLIC ${OPENCL_INCLUDE})
add_dependencies(opencl_rig opencl_shim)
set(opencl_script ${CMAKE_SOURCE_DIR}/tests/opencl/run.sh)
foreach(name values calls bad faults)
  add_executable(opencl_${name} ${CMAKE_SOURCE_DIR}/tests/opencl/${name}.c)
  target_link_libraries(opencl_${name} PRIVATE opencl_rig)
  add_test(NAME opencl_${name} COMMAND bash ${opencl_script} $<TARGET_FILE:opencl_${name}>)
endforeach()
add_test(NAME opencl_races COMMAND bash ${opencl_script} --oclgrind $<TARGET_FILE:opencl_values> small)
if(TILEPROOF_CLI)
  add_executable(opencl_record ${CMAKE_SOURCE_DIR}/tests/opencl/record.c)
  target_link_libraries(opencl_record PRIVATE tileproof_proof_static)
  add_test(NAME opencl_tool COMMAND bash ${CMAKE_SOURCE_DIR}/tests/opencl/tool.sh $<TARGET_FILE:tileproof_cli>
    $<TARGET_FILE:opencl_shim>)
  list(APPEND opencl_tests opencl_tool)
  add_test(NAME opencl_label COMMAND bash ${CMAKE_SOURCE_DIR}/tests/opencl/label.sh $<TARGET_FILE:tileproof_cli>
    $<TARGET_FILE:opencl_record>)
endif()
set_tests_properties(opencl_values opencl_calls opencl_bad opencl_faults opencl_races ${opencl_tests} PROPERTIES LABELS "slow;device"
  TIMEOUT 900 SKIP_RETURN_CODE 77)
