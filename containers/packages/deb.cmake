# Debian packages: `cpack -G DEB` in a build tree.
#
#   headrace         headraced, headracectl, headrace-plan, their manuals, the systemd unit, user and configuration
#   libheadrace      the client library
#   libheadrace-dev  its header, pkg-config file and CMake package
#   python3-headrace the Python package
#
# They name what they need of Debian, found by dpkg-shlibdeps, in place of carrying it.
set(here ${CMAKE_CURRENT_LIST_DIR})
install(FILES ${here}/headraced.service DESTINATION lib/systemd/system
        COMPONENT system EXCLUDE_FROM_ALL)
install(FILES ${here}/headrace.sysusers DESTINATION lib/sysusers.d RENAME headrace.conf
        COMPONENT system EXCLUDE_FROM_ALL)
install(FILES ${here}/headrace.toml DESTINATION /etc/headrace COMPONENT system EXCLUDE_FROM_ALL)
install(TARGETS headrace LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        COMPONENT library EXCLUDE_FROM_ALL)
headrace_install_needs(library PACKAGE libheadrace COMPILED_IN fmt/format.h boost/version.hpp EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_SOURCE_DIR}/client/include/headrace/headrace.h DESTINATION include/headrace
        COMPONENT development EXCLUDE_FROM_ALL)
headrace_install_consumers_files(development EXCLUDE_FROM_ALL)
foreach(package headrace:system libheadrace:library libheadrace-dev:development python3-headrace:python)
  string(REPLACE ":" ";" package ${package})
  list(GET package 0 name)
  list(GET package 1 component)
  install(FILES ${here}/copyright DESTINATION share/doc/${name} COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/client/python/headrace DESTINATION lib/python3/dist-packages
        COMPONENT python EXCLUDE_FROM_ALL
        FILES_MATCHING PATTERN "*.py" PATTERN py.typed PATTERN __pycache__ EXCLUDE)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME headrace)
set(CPACK_PACKAGE_VENDOR Headrace)
set(CPACK_PACKAGE_CONTACT "The Headrace developers <headrace@localhost>")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_COMPONENTS_ALL service planner system library development python)
set(CPACK_COMPONENT_SERVICE_GROUP headrace)
set(CPACK_COMPONENT_PLANNER_GROUP headrace)
set(CPACK_COMPONENT_SYSTEM_GROUP headrace)
set(CPACK_COMPONENT_LIBRARY_GROUP libheadrace)
set(CPACK_COMPONENT_DEVELOPMENT_GROUP libheadrace-dev)
set(CPACK_COMPONENT_PYTHON_GROUP python3-headrace)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION net)

set(CPACK_DEBIAN_HEADRACE_PACKAGE_NAME headrace)
set(CPACK_DEBIAN_HEADRACE_DESCRIPTION
    "service that owns and schedules the communication of distributed training\n\
 One headraced per node receives gradients from training processes, sums them in the\n\
 node and between nodes, and decides what moves when. headracectl shows and steers it.")
set(CPACK_DEBIAN_HEADRACE_PACKAGE_DEPENDS "systemd | systemd-standalone-sysusers")
set(CPACK_DEBIAN_HEADRACE_PACKAGE_CONTROL_EXTRA
    "${here}/postinst;${here}/prerm;${here}/postrm;${here}/conffiles")

set(CPACK_DEBIAN_LIBHEADRACE_PACKAGE_NAME libheadrace)
set(CPACK_DEBIAN_LIBHEADRACE_DESCRIPTION "client library of headraced, for training processes")

set(CPACK_DEBIAN_LIBHEADRACE-DEV_PACKAGE_NAME libheadrace-dev)
set(CPACK_DEBIAN_LIBHEADRACE-DEV_PACKAGE_DEPENDS "libheadrace (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_LIBHEADRACE-DEV_DESCRIPTION "header of the client library of headraced")

set(CPACK_DEBIAN_PYTHON3-HEADRACE_PACKAGE_NAME python3-headrace)
set(CPACK_DEBIAN_PYTHON3-HEADRACE_PACKAGE_DEPENDS
    "libheadrace (= ${PROJECT_VERSION}), python3 (>= 3.9), python3-numpy")
set(CPACK_DEBIAN_PYTHON3-HEADRACE_DESCRIPTION
    "Python package of headrace, with its hooks for PyTorch")
include(CPack)
