# SPDX-License-Identifier: Apache-2.0
# What is installed: headers, libraries, tool, models, find_package(tileproof) and pkg-config tileproof,
# tileproof_proof.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tileproof)
install(TARGETS tileproof_shared EXPORT tileproofTargets)
install(TARGETS tileproof_static)
install(FILES include/tileproof.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
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
if(TARGET tileproof_proof_shared)
  install(TARGETS tileproof_proof_shared EXPORT tileproofTargets)
  install(TARGETS tileproof_proof_static)
  install(FILES include/tileproof_proof.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(DIRECTORY models DESTINATION ${CMAKE_INSTALL_DATADIR}/tileproof)
  configure_file(cmake/tileproof_proof.pc.in ${CMAKE_BINARY_DIR}/tileproof_proof.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/tileproof_proof.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
set(pc_pool "")
if(TILEPROOF_PTHREADPOOL)
  set(pc_pool "-lpthreadpool")
endif()
configure_file(cmake/tileproof.pc.in ${CMAKE_BINARY_DIR}/tileproof.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/tileproof.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
