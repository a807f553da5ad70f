# For arch_groups.cmake: replaces functions that upstream's utils.cmake has just defined.

foreach(_command IN ITEMS
    find_python_from_executable append_cmake_prefix_path define_extension_target get_torch_gpu_compiler_flags)
  cmake_language(EVAL CODE "macro(${_command})\nendmacro()")
endforeach()

macro(set_gencode_flags_for_srcs)
  cmake_parse_arguments(_group "" "BUILD_PTX_FOR_ARCH" "SRCS;CUDA_ARCHS" ${ARGN})
  get_filename_component(_from "${CMAKE_CURRENT_LIST_FILE}" NAME)
  message(STATUS "GROUP|${_from}|${_group_CUDA_ARCHS}|${_group_SRCS}")
endmacro()
