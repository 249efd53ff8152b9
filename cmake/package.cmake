# SPDX-License-Identifier: Apache-2.0
# What is installed: headers, libraries, tool, models, find_package(tileproof) and pkg-config tileproof,
# tileproof_proof.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tileproof)
install(TARGETS tileproof_shared EXPORT tileproofTargets)
set(static_targets tileproof_static)
install(FILES include/tileproof.h include/tileproof_backend.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT tileproofTargets NAMESPACE tileproof:: DESTINATION ${package_dir})
if(TILEPROOF_CLI)
  install(TARGETS tileproof_cli)
endif()
configure_package_config_file(cmake/tileproofConfig.cmake.in ${CMAKE_BINARY_DIR}/tileproofConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/tileproofConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/tileproofConfig.cmake ${CMAKE_BINARY_DIR}/tileproofConfigVersion.cmake
  DESTINATION ${package_dir})
# pkg-config files find everything from where they lie, so a prefix can be chosen at installation and moved. Folders
# that were configured as absolute paths stay what they are.
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(pc_prefix ${CMAKE_INSTALL_PREFIX})
else()
  file(RELATIVE_PATH pc_up "/x/${pc_dir}" "/x")
  string(REGEX REPLACE "/$" "" pc_up "${pc_up}")
  set(pc_prefix "\${pcfiledir}/${pc_up}")
endif()
foreach(dir LIBDIR INCLUDEDIR)
  string(TOLOWER pc_${dir} name)
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${dir}}")
    set(${name} "${CMAKE_INSTALL_${dir}}")
  else()
    set(${name} "\${prefix}/${CMAKE_INSTALL_${dir}}")
  endif()
endforeach()

if(TARGET tileproof_proof_shared)
  install(TARGETS tileproof_proof_shared EXPORT tileproofTargets)
  list(APPEND static_targets tileproof_proof_static)
  install(FILES include/tileproof_proof.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(DIRECTORY models DESTINATION ${CMAKE_INSTALL_DATADIR}/tileproof)
  configure_file(cmake/tileproof_proof.pc.in ${CMAKE_BINARY_DIR}/tileproof_proof.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/tileproof_proof.pc DESTINATION ${pc_dir})
endif()
set(pc_pool "")
if(TILEPROOF_PTHREADPOOL)
  set(pc_pool "-lpthreadpool")
endif()
configure_file(cmake/tileproof.pc.in ${CMAKE_BINARY_DIR}/tileproof.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/tileproof.pc DESTINATION ${pc_dir})

# The static libraries are targets of their own file: who does not use them needs neither the pool nor jansson.
install(TARGETS ${static_targets} EXPORT tileproofStaticTargets)
install(EXPORT tileproofStaticTargets NAMESPACE tileproof:: DESTINATION ${package_dir})
