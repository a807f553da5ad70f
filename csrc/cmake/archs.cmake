# How each source file is compiled: for which image, and with which seed.

# spark_source(<target> <file> [MIN_ARCH <number>])
function(spark_source target file)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "MIN_ARCH" "")
  string(REGEX MATCH "^[0-9]+" number "${SPARK_CUDA_ARCH}")
  cmake_path(GET file STEM stem)
  if(DEFINED arg_MIN_ARCH)
    if(number LESS arg_MIN_ARCH)
      message(STATUS "${file}: left out, needs sm_${arg_MIN_ARCH}")
      return()
    endif()
    string(TOUPPER ${stem} upper)
    target_compile_definitions(${target} PRIVATE SPARK_HAS_${upper})
  endif()
  target_sources(${target} PRIVATE ${file})
  # nvcc and g++ put random numbers into names of internal symbols; the file's own name does as well.
  set_property(SOURCE ${file} APPEND PROPERTY COMPILE_OPTIONS -frandom-seed=${file})
  if(file MATCHES "\\.cu$")
    set_property(SOURCE ${file} APPEND PROPERTY COMPILE_OPTIONS
      "-gencode=arch=compute_${SPARK_CUDA_ARCH},code=sm_${SPARK_CUDA_ARCH}")
  endif()
endfunction()
