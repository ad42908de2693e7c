// A model that felixlike exported, called from C++ with TVM's runtime alone.
//
//   Optimized.export_library("model.so")                     in Python, once
//   examples/build run                                       compiles this file against the headers of the wheels
//   ./run model.so input.bin 4x12 output.bin                 one float32 tensor in, one out
//
// What is needed at run time: libtvm_ffi.so, libtvm_runtime.so and the exported library.

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace ffi = tvm::ffi;

namespace {

constexpr int kPooledAllocator = 2;  // tvm::runtime::memory::AllocatorType::kPooled
constexpr size_t kAlignment = 64;    // bytes: generated code loads whole vectors from the start of a tensor

struct Aligned {
  void AllocData(DLTensor* tensor) {
    size_t bytes = ffi::GetDataSize(*tensor);
    tensor->data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

size_t Bytes(const ffi::Tensor& tensor) { return ffi::GetDataSize(*tensor.GetDLTensorPtr()); }

ffi::Tensor ReadTensor(const std::string& path, const std::string& sizes) {
  std::vector<int64_t> shape;
  std::istringstream text(sizes);
  for (std::string size; std::getline(text, size, 'x');) shape.push_back(std::stoll(size));
  ffi::Tensor tensor =
      ffi::Tensor::FromNDAlloc(Aligned(), ffi::Shape(shape), DLDataType{kDLFloat, 32, 1}, DLDevice{kDLCPU, 0});
  std::ifstream file(path, std::ios::binary);
  file.read(static_cast<char*>(tensor.data_ptr()), static_cast<std::streamsize>(Bytes(tensor)));
  if (!file) throw std::runtime_error(path + " is shorter than " + sizes + " float32 numbers");
  return tensor;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) {
    std::cerr << "usage: run MODEL.so INPUT.bin 4x12 OUTPUT.bin\n";
    return 2;
  }
  try {
    ffi::Module library = ffi::Module::LoadFromFile(arguments[1]);
    ffi::Module machine = library->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
    machine->GetFunction("vm_initialization").value()(static_cast<int>(kDLCPU), 0, kPooledAllocator);
    ffi::Tensor input = ReadTensor(arguments[2], arguments[3]);
    ffi::Any result = machine->GetFunction("main").value()(input);
    ffi::Tensor output = result.try_cast<ffi::Tensor>().has_value()
                             ? result.cast<ffi::Tensor>()
                             : result.cast<ffi::Array<ffi::Tensor>>()[0];
    std::ofstream file(arguments[4], std::ios::binary);
    file.write(static_cast<const char*>(output.data_ptr()),
               static_cast<std::streamsize>(Bytes(output)));
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
