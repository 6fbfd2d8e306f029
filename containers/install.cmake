# Where does it run? From any folder that it is installed to: programs look for the libraries they
# need in lib/headrace beside their own folder, as the client library does (client/install.cmake),
# and only then where the system has them.
#
# Components: `service` (headraced and headracectl), `planner` (headrace-plan), `client`, `libraries`
# (what the programs need and a machine may not have; packages that name their dependencies leave it
# out), `gpu` (programs of tests/gpu; only when asked for).

# headrace_install_program(TARGET COMPONENT [EXCLUDE_FROM_ALL])
function(headrace_install_program target component)
  file(RELATIVE_PATH libraries ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/headrace)
  # RPATH and not RUNPATH, because only RPATH also holds for what those libraries need in turn.
  # The client library, which some use, stands one folder above.
  set_target_properties(${target} PROPERTIES
    INSTALL_RPATH "$ORIGIN/${libraries};$ORIGIN/${libraries}/..")
  target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
  install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT ${component} ${ARGN})
  set_property(GLOBAL APPEND PROPERTY HEADRACE_PROGRAMS $<TARGET_FILE:${target}>)
endfunction()

# headrace_install_needs(COMPONENT [PROGRAMS path...] [LIBRARIES path...] [COMPILED_IN header...]
#                        [PACKAGE name] [EXCLUDE_FROM_ALL]): carries everything that programs and
# libraries of ours need, and installs the licences of that and of libraries that are headers, so that
# they are part of what we build; to share/doc/PACKAGE/licences. See carry.cmake.
function(headrace_install_needs component)
  cmake_parse_arguments(PARSE_ARGV 1 its EXCLUDE_FROM_ALL PACKAGE "PROGRAMS;LIBRARIES;COMPILED_IN")
  if(NOT its_PACKAGE)
    set(its_PACKAGE headrace)
  endif()
  set(compiled_in "")
  foreach(header IN LISTS its_COMPILED_IN)
    find_file(path NAMES ${header} NO_CACHE)
    if(path)
      list(APPEND compiled_in ${path})
    else()
      message(WARNING "no <${header}> where CMake looks for headers: installations will lack its licence")
    endif()
    unset(path)
  endforeach()
  set(ask "")
  if(its_EXCLUDE_FROM_ALL)
    set(ask EXCLUDE_FROM_ALL)
  endif()
  install(CODE "include(\"${PROJECT_SOURCE_DIR}/containers/carry.cmake\")
headrace_carry(${component} \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/headrace\"
  \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/doc/${its_PACKAGE}/licences\"
  \"${its_PROGRAMS}\" \"${its_LIBRARIES}\" \"${compiled_in}\")" COMPONENT ${component} ${ask})
endfunction()

function(headrace_install_libraries)
  get_property(programs GLOBAL PROPERTY HEADRACE_PROGRAMS)
  headrace_install_needs(libraries PROGRAMS ${programs})
  foreach(component service planner client)
    install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/headrace
            COMPONENT ${component})
  endforeach()
  headrace_install_needs(service COMPILED_IN fmt/format.h spdlog/spdlog.h boost/version.hpp CLI/CLI.hpp
                         toml++/toml.h nlohmann/json.hpp hwy/highway.h)
  headrace_install_needs(planner COMPILED_IN fmt/format.h CLI/CLI.hpp nlohmann/json.hpp)
endfunction()
