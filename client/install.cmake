# What a machine gets: the library with what it needs, its header, the Python package.
#
# libheadrace.so looks for its libraries beside itself, in headrace/. It is told so by RPATH and not
# by RUNPATH, because only RPATH also holds for what those libraries need in turn: distributions
# build them without a run path of their own.
set_target_properties(headrace PROPERTIES INSTALL_RPATH "$ORIGIN/headrace"
                      BUILD_WITH_INSTALL_RPATH ON)
target_link_options(headrace PRIVATE -Wl,--disable-new-dtags)

install(TARGETS headrace LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT client)
# Everything the library needs, directly or not, except what glibc brings.
headrace_install_needs(client LIBRARIES $<TARGET_FILE:headrace> COMPILED_IN fmt/format.h boost/version.hpp)
# For programs in C and C++: pkg-config and find_package(headrace), both wherever the tree stands.
file(RELATIVE_PATH HEADRACE_PREFIX_FROM_PKGCONFIG
     /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(headrace.pc.in ${CMAKE_CURRENT_BINARY_DIR}/headrace.pc @ONLY)
include(CMakePackageConfigHelpers)
configure_package_config_file(headraceConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/headraceConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/headrace)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/headraceConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
function(headrace_install_consumers_files component)
  install(FILES ${PROJECT_BINARY_DIR}/client/headrace.pc
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT ${component} ${ARGN})
  install(FILES ${PROJECT_BINARY_DIR}/client/headraceConfig.cmake
          ${PROJECT_BINARY_DIR}/client/headraceConfigVersion.cmake
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/headrace COMPONENT ${component} ${ARGN})
endfunction()
headrace_install_consumers_files(client)
install(FILES include/headrace/headrace.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/headrace COMPONENT client)
install(DIRECTORY python/headrace
        DESTINATION ${CMAKE_INSTALL_DATADIR}/headrace/python COMPONENT client
        FILES_MATCHING PATTERN "*.py" PATTERN py.typed PATTERN __pycache__ EXCLUDE)
