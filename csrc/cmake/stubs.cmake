# Linking against torch without having it for the target: empty libraries that carry its names.

# spark_link_torch(<target>) makes it need libtorch.so and libtorch_cpu.so. Without those entries the library does
# not load: Python opens torch's libraries RTLD_LOCAL, so their symbols are found only through a NEEDED entry.
# libtorch_cuda.so is left out; libtorch.so brings it where there is one.
function(spark_link_torch target)
  foreach(name torch torch_cpu)
    set(source ${CMAKE_BINARY_DIR}/stubs/${name}.cpp)
    file(GENERATE OUTPUT ${source} CONTENT "")
    add_library(stub_${name} SHARED ${source})
    set_target_properties(stub_${name} PROPERTIES
      OUTPUT_NAME ${name} LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/stubs LINKER_LANGUAGE CXX)
    target_link_libraries(${target} PRIVATE
      -Wl,--push-state,--no-as-needed $<TARGET_FILE:stub_${name}> -Wl,--pop-state)
    add_dependencies(${target} stub_${name})
  endforeach()
endfunction()
