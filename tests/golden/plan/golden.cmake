# Runs a program and compares its output and exit code with what is expected of it.
#   cmake -DPROGRAM=... -DARGUMENTS=a;b;c -DFOLDER=... -DNAME=... -DEXIT=... -P golden.cmake
# It runs in FOLDER, so that names of files stand in messages as they stand there. Files that the
# arguments name as "@written" are compared too, with NAME.written. HEADRACE_GOLDEN_UPDATE=1 in the
# environment writes the expected files anew.
set(written ${CMAKE_CURRENT_BINARY_DIR}/${NAME}.written)
file(REMOVE ${written})
list(TRANSFORM ARGUMENTS REPLACE "^@written$" "${written}")
execute_process(COMMAND ${PROGRAM} ${ARGUMENTS} WORKING_DIRECTORY ${FOLDER}
                OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE exit)
if(NOT exit EQUAL EXIT)
  message(FATAL_ERROR "exit code ${exit}, expected ${EXIT}:\n${output}")
endif()

function(compare text expected)
  if("$ENV{HEADRACE_GOLDEN_UPDATE}" STREQUAL "1")
    file(WRITE ${expected} "${text}")
    return()
  endif()
  file(READ ${expected} wanted)
  if(NOT text STREQUAL wanted)
    message(FATAL_ERROR "${expected} says:\n${wanted}\nbut this came out:\n${text}")
  endif()
endfunction()

compare("${output}" ${FOLDER}/expected/${NAME}.txt)
if(EXISTS ${written})
  file(READ ${written} text)
  compare("${text}" ${FOLDER}/expected/${NAME}.written)
  file(REMOVE ${written})
endif()
