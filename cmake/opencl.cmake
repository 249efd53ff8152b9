# SPDX-License-Identifier: Apache-2.0
# libtileproof_opencl, shared and static: a backend of OpenCL devices. It needs OpenCL's headers to be built, and links with
# nothing of OpenCL: libOpenCL.so.1 is loaded when a program asks for it.
set(kernel_dir ${CMAKE_SOURCE_DIR}/opencl/kernels)
foreach(pair forward=attend backward=backward)
  string(REPLACE "=" ";" pair ${pair})
  list(GET pair 0 name)
  list(GET pair 1 file)
  set(files ${kernel_dir}/call.inc ${kernel_dir}/common.cl ${kernel_dir}/${file}.cl)
  set(out ${CMAKE_BINARY_DIR}/opencl_${name}.c)
  add_custom_command(OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -DNAME=tp__ocl_source_${name} "-DFILES=${files}" -DOUT=${out} -P ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${files} ${CMAKE_SOURCE_DIR}/cmake/embed.cmake VERBATIM)
  list(APPEND opencl_embedded ${out})
endforeach()
file(GLOB opencl_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/opencl/*.c)
add_library(tileproof_opencl_objects OBJECT ${opencl_sources} ${opencl_embedded})
target_include_directories(tileproof_opencl_objects PRIVATE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/opencl
  ${OPENCL_INCLUDE})
target_compile_definitions(tileproof_opencl_objects PRIVATE _GNU_SOURCE)
foreach(kind SHARED STATIC)
  string(TOLOWER ${kind} suffix)
  add_library(tileproof_opencl_${suffix} ${kind} $<TARGET_OBJECTS:tileproof_opencl_objects>)
  set_target_properties(tileproof_opencl_${suffix} PROPERTIES
    OUTPUT_NAME tileproof_opencl EXPORT_NAME opencl_${suffix}
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  target_include_directories(tileproof_opencl_${suffix} PUBLIC
    $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
target_link_libraries(tileproof_opencl_shared PRIVATE m Threads::Threads ${CMAKE_DL_LIBS})
target_link_libraries(tileproof_opencl_static PUBLIC m Threads::Threads ${CMAKE_DL_LIBS})
