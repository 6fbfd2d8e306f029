# What is carried, and under whose licence? Read by an install tree's scripts, when it is installed.
#
# Beside what it carries an installation says whose it is, in share/doc/headrace/licences: a line for
# each file in COMPONENT.txt, and PACKAGE/copyright as Debian has it, with the common licences that it
# refers to.

cmake_policy(VERSION 3.25)
# What every machine has: glibc's; and what NVIDIA's driver brings to those that have one, for a UCX
# with CUDA.
set(HEADRACE_OF_MACHINES "^ld-linux" "^lib(c|m|dl|rt|pthread|util|resolv)\\.so"
    "^lib(cuda|nvidia-ml)\\.so\\.1")

# The shared libraries that files of this KIND (EXECUTABLES, LIBRARIES, MODULES) need, directly or
# not, except what machines have and what this project builds itself. Absent ones end the installation.
function(headrace_needs_of kind files result)
  if(NOT files)
    set(${result} "" PARENT_SCOPE)
    return()
  endif()
  file(GET_RUNTIME_DEPENDENCIES ${kind} ${files}
       RESOLVED_DEPENDENCIES_VAR found UNRESOLVED_DEPENDENCIES_VAR absent
       PRE_EXCLUDE_REGEXES ${HEADRACE_OF_MACHINES} POST_EXCLUDE_REGEXES "/libheadrace\\.so$")
  if(absent)
    message(FATAL_ERROR "${files} need ${absent}, which this machine lacks: install the packages that "
                        "have them, or remove the module that needs them")
  endif()
  set(${result} ${found} PARENT_SCOPE)
endfunction()

# UCX's modules, which it looks for in a folder beside its own library and loads at run time; and of
# each the drivers that libibverbs loads for RDMA devices, by a name that has its version in it.
function(headrace_modules libraries modules_result drivers_result)
  set(modules "")
  set(drivers "")
  foreach(library IN LISTS libraries)
    get_filename_component(folder ${library} DIRECTORY)
    if(library MATCHES "/libucs\\.so")
      file(GLOB modules LIST_DIRECTORIES false "${folder}/ucx/*.so.0")
    endif()
  endforeach()
  headrace_needs_of(MODULES "${modules}" needs)
  foreach(library IN LISTS needs)
    get_filename_component(folder ${library} DIRECTORY)
    if(library MATCHES "/libibverbs\\.so")
      file(GLOB drivers LIST_DIRECTORIES false "${folder}/libibverbs/*-rdmav*.so")
    endif()
  endforeach()
  set(${modules_result} ${modules} PARENT_SCOPE)
  set(${drivers_result} ${drivers} PARENT_SCOPE)
endfunction()

# The Debian package that owns a file, empty if none does. Before the two were merged, /lib and
# /usr/lib had files of their own, and packages still say the one that they were made for.
function(headrace_package_of path result)
  get_filename_component(real ${path} REALPATH)
  string(REGEX REPLACE "^/usr" "" unmerged ${path})
  string(REGEX REPLACE "^/usr" "" unmerged_real ${real})
  execute_process(
    COMMAND dpkg-query --search ${unmerged} /usr${unmerged} ${unmerged_real} /usr${unmerged_real}
    OUTPUT_VARIABLE told ERROR_QUIET)
  set(package "")
  if("${told}" MATCHES "^([a-z0-9.+-]+)(:[a-z0-9]+)?(, [^\n]*)?: /")
    set(package ${CMAKE_MATCH_1})
  endif()
  set(${result} "${package}" PARENT_SCOPE)
endfunction()

# Installs a package's copyright file, and the common licences that it refers to by their path.
function(headrace_install_licence package folder)
  set(path /usr/share/doc/${package}/copyright)
  if(NOT EXISTS ${path})
    message(WARNING "${package} has no ${path}, though its files are carried: add its licence to "
                    "${folder}/${package} before handing the installation on")
    return()
  endif()
  get_filename_component(real ${path} REALPATH)
  file(INSTALL DESTINATION ${folder}/${package} TYPE FILE RENAME copyright FILES ${real})
  file(READ ${real} text)
  string(REGEX MATCHALL "/usr/share/common-licenses/[A-Za-z0-9.+-]+" common "${text}")
  list(TRANSFORM common REPLACE "\\.$" "")
  list(REMOVE_DUPLICATES common)
  foreach(licence IN LISTS common)
    if(EXISTS ${licence})
      get_filename_component(name ${licence} NAME)
      get_filename_component(real ${licence} REALPATH)
      file(INSTALL DESTINATION ${folder}/common TYPE FILE RENAME ${name} FILES ${real})
    endif()
  endforeach()
endfunction()

# Licences of `carried`, a list of files where this machine has them; `compiled_in` are headers of
# libraries that are part of our programs.
function(headrace_install_licences component folder carried compiled_in)
  set(lines "")
  set(packages "")
  foreach(path IN LISTS carried compiled_in)
    headrace_package_of(${path} package)
    get_filename_component(name ${path} NAME)
    if(path IN_LIST compiled_in)
      string(REGEX REPLACE "^.*/include/" "compiled in: " name ${path})
    endif()
    if(package STREQUAL "")
      message(WARNING "no Debian package owns ${path}, so its licence is not known: add it to "
                      "${folder} before handing the installation on")
      set(package "unknown")
    else()
      list(APPEND packages ${package})
    endif()
    string(APPEND lines "${name}\t${package}\n")
  endforeach()
  list(REMOVE_DUPLICATES packages)
  foreach(package IN LISTS packages)
    headrace_install_licence(${package} ${folder})
  endforeach()
  file(MAKE_DIRECTORY $ENV{DESTDIR}${folder})
  file(WRITE $ENV{DESTDIR}${folder}/${component}.txt "${lines}")
endfunction()

# A library with a run path of its own, as UCX's module for RDMA connections has, is not looked after by
# that of the program that loads it, and would find the machine's libraries, or none.
function(headrace_forget_run_paths folder)
  file(GLOB_RECURSE files LIST_DIRECTORIES false "$ENV{DESTDIR}${folder}/*.so*")
  foreach(file IN LISTS files)
    if(NOT IS_SYMLINK ${file})
      file(RPATH_REMOVE FILE ${file})
    endif()
  endforeach()
endfunction()

# Copies what programs and libraries of ours need into `folder`, with its licences.
function(headrace_carry component folder licences programs libraries compiled_in)
  # Those that were not asked for were perhaps not built either.
  foreach(list programs libraries)
    set(built "")
    foreach(file IN LISTS ${list})
      if(EXISTS ${file})
        list(APPEND built ${file})
      endif()
    endforeach()
    set(${list} ${built})
  endforeach()
  headrace_needs_of(EXECUTABLES "${programs}" needs)
  headrace_needs_of(LIBRARIES "${libraries}" more)
  list(APPEND needs ${more})
  headrace_modules("${needs}" modules drivers)
  set(loaded ${modules} ${drivers})
  headrace_needs_of(MODULES "${loaded}" more)
  list(APPEND needs ${more} ${drivers})
  list(REMOVE_DUPLICATES needs)
  # Modules need each other: UCX has loaded those by then, and a second copy would be another module.
  list(FILTER needs EXCLUDE REGEX "/ucx/")
  if(needs)
    file(INSTALL DESTINATION ${folder} TYPE SHARED_LIBRARY FOLLOW_SYMLINK_CHAIN FILES ${needs})
  endif()
  if(modules)
    file(INSTALL DESTINATION ${folder}/ucx TYPE SHARED_LIBRARY FOLLOW_SYMLINK_CHAIN FILES ${modules})
  endif()
  headrace_forget_run_paths(${folder})
  list(APPEND needs ${modules})
  headrace_install_licences(${component} ${licences} "${needs}" "${compiled_in}")
endfunction()
