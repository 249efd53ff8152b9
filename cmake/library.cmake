# SPDX-License-Identifier: Apache-2.0
# libtileproof, shared and static, from one set of objects.
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/*/*.c)
list(FILTER sources EXCLUDE REGEX "_tmpl\\.c$")
file(GLOB templates CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/*_tmpl.c)
file(GLOB bf16_templates CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/bf16/*_tmpl.c)
file(GLOB amx_templates CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/amx/*_tmpl.c)

find_package(Threads REQUIRED)
add_library(tileproof_flags INTERFACE)
target_include_directories(tileproof_flags INTERFACE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
if(TILEPROOF_PTHREADPOOL)
  # Debian ships neither a CMake nor a pkg-config file for it.
  find_path(PTHREADPOOL_INCLUDE pthreadpool.h)
  find_library(PTHREADPOOL_LIBRARY pthreadpool)
  if(NOT PTHREADPOOL_INCLUDE OR NOT PTHREADPOOL_LIBRARY)
    message(FATAL_ERROR "libpthreadpool was not found (Debian: libpthreadpool-dev). "
                        "-DTILEPROOF_PTHREADPOOL=OFF builds without it.")
  endif()
  target_compile_definitions(tileproof_flags INTERFACE TILEPROOF_PTHREADPOOL
    $<$<BOOL:${TILEPROOF_YIELD}>:TILEPROOF_YIELD>)
  target_include_directories(tileproof_flags INTERFACE ${PTHREADPOOL_INCLUDE})
  set(pool_libraries ${PTHREADPOOL_LIBRARY})
endif()

# tp_build_hash: what the library is made of, found out by the build whenever a source changes.
file(GLOB hashed CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/*/*.[chi]* ${CMAKE_SOURCE_DIR}/src/kernels/vec/*.h
  ${CMAKE_SOURCE_DIR}/src/kernels/bf16/*.[ch] ${CMAKE_SOURCE_DIR}/src/kernels/amx/*.[ch])
list(SORT hashed)
list(APPEND hashed ${CMAKE_SOURCE_DIR}/CMakeLists.txt ${CMAKE_SOURCE_DIR}/include/tileproof.h
  ${CMAKE_SOURCE_DIR}/include/tileproof_backend.h ${CMAKE_SOURCE_DIR}/include/tileproof_cache.h
  ${CMAKE_SOURCE_DIR}/include/tileproof_rope.h ${CMAKE_SOURCE_DIR}/cmake/library.cmake)
string(TOUPPER "${CMAKE_BUILD_TYPE}" build_type)
string(REGEX REPLACE " +" " " build_with "${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION} ${CMAKE_C_FLAGS} \
${CMAKE_C_FLAGS_${build_type}} pthreadpool=${TILEPROOF_PTHREADPOOL} emulated=${TILEPROOF_EMULATED} \
sanitize=${TILEPROOF_SANITIZE}")
string(REGEX REPLACE "-f[a-z]*-prefix-map=[^ ]*" "" build_with "${build_with}") # says where, not what
list(TRANSFORM hashed REPLACE "^${CMAKE_SOURCE_DIR}/" "" OUTPUT_VARIABLE hashed_names)
list(JOIN hashed_names "\n" hashed_lines)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/hashed.txt CONTENT "${hashed_lines}\n")
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/hashed_with.txt CONTENT "${build_with}\n")
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/build_hash.c
  COMMAND ${CMAKE_COMMAND} -DROOT=${CMAKE_SOURCE_DIR} -DLIST=${CMAKE_BINARY_DIR}/hashed.txt
    -DWITH=${CMAKE_BINARY_DIR}/hashed_with.txt -DOUT=${CMAKE_BINARY_DIR}/build_hash.c
    -P ${CMAKE_SOURCE_DIR}/cmake/build_hash.cmake
  DEPENDS ${hashed} ${CMAKE_SOURCE_DIR}/cmake/build_hash.cmake ${CMAKE_BINARY_DIR}/hashed.txt
    ${CMAKE_BINARY_DIR}/hashed_with.txt
  VERBATIM)

add_library(tileproof_objects OBJECT ${sources} ${CMAKE_BINARY_DIR}/build_hash.c)
target_link_libraries(tileproof_objects PRIVATE tileproof_flags)
target_compile_options(tileproof_objects PRIVATE -falign-functions=64)
set(objects $<TARGET_OBJECTS:tileproof_objects>)

# One source of kernels, compiled once per ISA of src/kernels/isas.inc; sets on pairs of bf16 have their own, and that on tiles
# its attend and peak beside their packing.
function(tileproof_kernels isa)
  set(kernel_templates ${templates})
  if(isa MATCHES "_bf16")
    set(kernel_templates ${bf16_templates})
  endif()
  if(isa MATCHES "amx")
    set(kernel_templates ${amx_templates} ${CMAKE_SOURCE_DIR}/src/kernels/bf16/pack_tmpl.c ${CMAKE_SOURCE_DIR}/src/kernels/bf16/set_tmpl.c)
  endif()
  add_library(tileproof_kernels_${isa} OBJECT ${kernel_templates})
  target_link_libraries(tileproof_kernels_${isa} PRIVATE tileproof_flags)
  target_compile_definitions(tileproof_kernels_${isa} PRIVATE TP_ISA=${isa})
  target_compile_options(tileproof_kernels_${isa} PRIVATE ${ARGN} -falign-functions=64 -falign-loops=32
    $<$<C_COMPILER_ID:GNU>:-fno-var-tracking>) # where a debugger finds each variable: a quarter of the time to compile these
  if(TILEPROOF_SANITIZE MATCHES address AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
    # Checks of memory by calls, and none of what unaligned vectors are made of: a quarter of the time to compile these. Arrays
    # that gcc 12 puts aside to find their use after return lie at multiples of 32 bytes, and are written as if of 64.
    target_compile_options(tileproof_kernels_${isa} PRIVATE --param=asan-instrumentation-with-call-threshold=0
      --param=asan-use-after-return=0 -fno-sanitize=null,alignment,object-size,pointer-overflow)
  endif()
  if(TILEPROOF_FUZZ) # fuzzers read texts and files; instrumented, these take clang an hour
    target_compile_options(tileproof_kernels_${isa} PRIVATE -fno-sanitize=all)
  endif()
  set(objects ${objects} $<TARGET_OBJECTS:tileproof_kernels_${isa}> PARENT_SCOPE)
  set(kernel_objects ${kernel_objects} $<TARGET_OBJECTS:tileproof_kernels_${isa}> PARENT_SCOPE)
endfunction()
tileproof_kernels(generic)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  tileproof_kernels(avx2 -mavx2 -mfma -mf16c)
  if(TILEPROOF_EMULATED)
    target_compile_definitions(tileproof_flags INTERFACE TILEPROOF_EMULATED)
    tileproof_kernels(avx512_emulated -mavx2 -mfma -Wno-psabi)
    tileproof_kernels(avx512_bf16_emulated -mavx2 -mfma -Wno-psabi)
    tileproof_kernels(amx_bf16_emulated -mavx2 -mfma -Wno-psabi)
  endif()
  set(avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c)
  tileproof_kernels(avx512 ${avx512})
  tileproof_kernels(avx512_bf16 ${avx512} -mavx512bf16)
  tileproof_kernels(amx_bf16 ${avx512} -mavx512bf16 -mamx-tile -mamx-bf16)
endif()

foreach(kind SHARED STATIC)
  string(TOLOWER ${kind} suffix)
  add_library(tileproof_${suffix} ${kind} ${objects})
  set_target_properties(tileproof_${suffix} PROPERTIES
    OUTPUT_NAME tileproof EXPORT_NAME ${suffix}
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  target_include_directories(tileproof_${suffix} PUBLIC
    $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
target_link_libraries(tileproof_shared PRIVATE m ${pool_libraries} Threads::Threads)
target_link_options(tileproof_shared PRIVATE -Wl,-Bsymbolic-functions -Wl,--no-undefined)
# Who links the static library links what it needs; an installed one by name, wherever it lies there.
target_link_libraries(tileproof_static PUBLIC m Threads::Threads)
if(TILEPROOF_PTHREADPOOL)
  target_link_libraries(tileproof_static PUBLIC
    $<BUILD_INTERFACE:${PTHREADPOOL_LIBRARY}> $<INSTALL_INTERFACE:pthreadpool>)
endif()
if(TILEPROOF_SANITIZE)
  # sanitizer runtimes are the program's
  set_property(TARGET tileproof_shared PROPERTY LINK_OPTIONS -Wl,-Bsymbolic-functions -fsanitize=${TILEPROOF_SANITIZE})
endif()
