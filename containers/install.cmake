# Where does it run? From any folder that it is installed to: programs look for the libraries they
# need in lib/headrace beside their own folder, as the client library does (client/install.cmake),
# and only then where the system has them.
#
# Components: `service` (headraced and headracectl), `client`, `libraries` (what the programs need
# and a machine may not have; packages that name their dependencies leave it out), `gpu` (programs of
# tests/gpu; only when asked for).

# headrace_install_program(TARGET COMPONENT [EXCLUDE_FROM_ALL])
function(headrace_install_program target component)
  file(RELATIVE_PATH libraries ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/headrace)
  # RPATH and not RUNPATH, because only RPATH also holds for what those libraries need in turn.
  # The client library, which some use, stands one folder above.
  set_target_properties(${target} PROPERTIES
    INSTALL_RPATH "$ORIGIN/${libraries};$ORIGIN/${libraries}/..")
  target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
  install(TARGETS ${target} RUNTIME_DEPENDENCY_SET headrace_programs_need
          RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT ${component} ${ARGN})
endfunction()

# Everything that installed programs need, directly or not, except what glibc brings; and the
# modules that UCX loads at run time, which it looks for beside its own library.
function(headrace_install_libraries)
  install(RUNTIME_DEPENDENCY_SET headrace_programs_need
          PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|util|resolv)\\.so"
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/headrace COMPONENT libraries)
  if(NOT HEADRACE_HAVE_UCX)
    return()
  endif()
  get_filename_component(ucs_folder ${pkgcfg_lib_UCX_ucs} DIRECTORY)
  install(DIRECTORY ${ucs_folder}/ucx DESTINATION ${CMAKE_INSTALL_LIBDIR}/headrace
          COMPONENT libraries FILES_MATCHING PATTERN "*.so.*")
endfunction()
