# Runs vLLM's own CMakeLists.txt in script mode and reports which targets each group of CUDA sources gets.
#
#   cmake -DREQUEST=12.1a -DCUDA=13.0 -P arch_groups.cmake        (working directory: a vLLM source tree)
#
# The project's files are read as they are; all arithmetic on architecture lists is upstream's. Only commands with
# an effect outside of CMake variables (targets, downloads, generators) do nothing here, and the macro that attaches
# targets to source files prints them instead:
#
#   GROUP|<file>|<targets>|<sources, or the glob pattern of generated ones>

# What the toolchain, PyTorch's CMake package and setup.py would have set.
string(REPLACE ";" " " CMAKE_CUDA_FLAGS "${REQUEST}")
string(REGEX REPLACE "([0-9]+)\\.([0-9][af]?)" "-gencode arch=compute_\\1\\2,code=sm_\\1\\2"
  CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS}")
set(CMAKE_CUDA_COMPILER_VERSION "${CUDA}.88")
set(CMAKE_CXX_COMPILER_ID "GNU")
set(CMAKE_CXX_COMPILER_VERSION "14.2")
set(CMAKE_SYSTEM_PROCESSOR "aarch64")
set(VLLM_PYTHON_EXECUTABLE "python3")
set(CUDA_FOUND TRUE)
set(NVCC_EXECUTABLE "nvcc")
set(Torch_VERSION "2.14.0")
foreach(_project IN ITEMS triton_kernels deepgemm qutlass)
  set(${_project}_SOURCE_DIR "${CMAKE_CURRENT_LIST_DIR}")
endforeach()

foreach(_command IN ITEMS
    project enable_language find_package
    install include_directories add_library add_custom_target add_custom_command add_dependencies
    set_property set_target_properties set_source_files_properties
    target_compile_definitions target_compile_options target_include_directories target_link_libraries
    FetchContent_Declare FetchContent_GetProperties FetchContent_MakeAvailable FetchContent_Populate)
  cmake_language(EVAL CODE "macro(${_command})\nendmacro()")
endforeach()

# Generators succeed and leave nothing behind.
macro(execute_process)
  cmake_parse_arguments(_run "" "RESULT_VARIABLE" "" ${ARGN})
  if(_run_RESULT_VARIABLE)
    set(${_run_RESULT_VARIABLE} 0)
  endif()
endmacro()

# Nothing is written; a pattern stands for the files that a generator would have made.
macro(file)
  cmake_parse_arguments(_file "" "GLOB" "" ${ARGN})
  if(_file_GLOB)
    set(${_file_GLOB} ${_file_UNPARSED_ARGUMENTS})
  endif()
endmacro()

set(_after_utils "${CMAKE_CURRENT_LIST_DIR}/arch_groups_after_utils.cmake")
macro(include _wanted)
  if(NOT "${_wanted}" STREQUAL "FetchContent")
    _include("${_wanted}")
  endif()
  if("${_wanted}" MATCHES "/utils.cmake$")
    _include("${_after_utils}")
  endif()
endmacro()

_include(CMakeLists.txt)
message(STATUS "READ TO THE END")
