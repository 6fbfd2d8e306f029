"""How the Python package sees memory of GPUs, without a service and without a GPU."""

import gc
import mmap
import unittest
from unittest import mock

import numpy
from headrace import region
from headrace.arena import Tensor
from headrace.region import Foreign, Region, device_number, host_region, stream_handle

try:
    import torch
except ImportError:
    torch = None

DTYPES = ["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8"]


class Placed:
    """Elements of a region, as other libraries ask for them."""

    def __init__(self, memory, dtype, shape, offset=0):
        self.memory, self.arguments = memory, (dtype, shape, offset)

    def __dlpack__(self, **_):
        return self.memory.dlpack(*self.arguments)

    def __dlpack_device__(self):
        return self.memory.dlpack_device()


class DLPack(unittest.TestCase):
    def setUp(self):
        self.map = mmap.mmap(-1, 4096)
        self.memory = host_region(self.map)
        self.assertEqual(region._lent, {})

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_gives_torch_every_element_type_in_place(self):
        for name in DTYPES:
            with self.subTest(name):
                tensor = torch.from_dlpack(Placed(self.memory, name, (2, 3, 4), 64))
                self.assertEqual(tensor.dtype, getattr(torch, name))
                self.assertEqual(tensor.shape, (2, 3, 4))
                self.assertEqual(tensor.stride(), (12, 4, 1))
                self.assertEqual(tensor.data_ptr(), self.memory.address + 64)
                del tensor
                self.assertEqual(region._lent, {})

    def test_gives_numpy_the_same_elements(self):
        array = numpy.from_dlpack(Placed(self.memory, "int32", (3, 2), 8))
        self.map[8:12] = (77).to_bytes(4, "little")
        self.assertEqual(array[0, 0], 77)
        self.assertEqual(array.strides, (8, 4))

    def test_takes_scalars_and_empty_tensors(self):
        for shape in ((), (1,), (0, 5), (4, 0)):
            with self.subTest(shape):
                array = numpy.from_dlpack(Placed(self.memory, "float32", shape))
                self.assertEqual(array.shape, shape)

    def test_keeps_the_memory_as_long_as_a_view_of_it_lives(self):
        class Owner:
            gone = False

            def __del__(self):
                Owner.gone = True

        memory = Region(self.memory.address, 64, None, Owner())
        array = numpy.from_dlpack(Placed(memory, "float32", (4,)))
        del memory
        gc.collect()
        self.assertFalse(Owner.gone)
        del array
        gc.collect()
        self.assertTrue(Owner.gone)

    def test_a_capsule_that_nobody_takes_lets_go_of_the_memory(self):
        capsule = self.memory.dlpack("float32", (4,), 0)
        self.assertEqual(len(region._lent), 1)
        del capsule
        self.assertEqual(region._lent, {})

    def test_names_the_gpu(self):
        self.assertEqual(Region(1, 1, 3, None).dlpack_device(), (2, 3))


class CudaInterface(unittest.TestCase):
    def tensor(self, dtype, device):
        arena = mock.Mock(region=Region(4096, 64, device, None), device=device)
        spec = mock.Mock(shape=(2, 3), dtype=dtype, order=0)
        spec.name = "t"
        return Tensor(arena, 1, 16, spec)

    def test_says_where_the_elements_are(self):
        tensor = self.tensor("float16", 1)
        interface = tensor.__cuda_array_interface__
        self.assertEqual(interface["data"], (4112, False))
        self.assertEqual(interface["shape"], (2, 3))
        self.assertEqual(interface["typestr"], "<f2")
        self.assertEqual(interface["version"], 3)
        self.assertIsNone(interface["stream"])

    def test_names_the_stream_that_last_waited_where_0_is_the_default_streams_1(self):
        tensor = self.tensor("float32", 0)
        for stream, spelled in ((0, 1), (77, 77)):
            tensor.last_stream = stream
            self.assertEqual(tensor.__cuda_array_interface__["stream"], spelled)

    def test_there_is_none_of_host_memory_and_of_bfloat16(self):
        self.assertFalse(
            hasattr(self.tensor("float32", None), "__cuda_array_interface__")
        )
        self.assertFalse(
            hasattr(self.tensor("bfloat16", 0), "__cuda_array_interface__")
        )


class Sharing(unittest.TestCase):
    def foreign(self, **changes):
        interface = {
            "data": (4096, False),
            "shape": (2, 3),
            "typestr": "<f4",
            "strides": None,
            "version": 3,
        }
        x = mock.Mock(spec=["__cuda_array_interface__"])
        x.__cuda_array_interface__ = {**interface, **changes}
        return Foreign(x)

    def test_takes_what_is_contiguous(self):
        for strides in (None, (12, 4)):
            memory = self.foreign(strides=strides)
            self.assertEqual(memory.address, 4096)
            self.assertEqual((memory.shape, memory.dtype), ((2, 3), "float32"))

    def test_refuses_what_is_not_with_the_reason(self):
        cases = [
            ({"strides": (16, 4)}, "not contiguous"),
            ({"data": (4096, True)}, "read-only"),
            ({"typestr": "<c8"}, "elements <c8"),
        ]
        for changes, words in cases:
            with self.assertRaisesRegex((ValueError, TypeError), words):
                self.foreign(**changes)
        with self.assertRaisesRegex(TypeError, "__cuda_array_interface__"):
            Foreign(numpy.zeros(3))

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_refuses_a_tensor_of_the_cpu(self):
        with self.assertRaisesRegex(TypeError, "cpu"):
            Foreign(torch.zeros(3))


class Naming(unittest.TestCase):
    def test_a_stream_is_a_number_or_has_one(self):
        self.assertEqual(stream_handle(0), 0)
        self.assertEqual(stream_handle(1), 0)
        self.assertEqual(stream_handle(77), 77)
        self.assertEqual(stream_handle(mock.Mock(spec=["ptr"], ptr=5)), 5)
        self.assertEqual(
            stream_handle(mock.Mock(spec=["cuda_stream"], cuda_stream=6)), 6
        )
        for wrong in (True, -1, "3", None):
            with self.assertRaisesRegex(TypeError, "CUstream"):
                stream_handle(wrong)

    def test_a_gpu_is_a_number_or_torchs_name(self):
        for given, number in ((None, None), ("cpu", None), (2, 2), ("cuda:1", 1)):
            self.assertEqual(device_number(given), number)
        if torch is not None:
            self.assertEqual(device_number(torch.device("cuda", 3)), 3)
        for wrong in ("cuda", "gpu:1", True, "mps"):
            with self.assertRaisesRegex(ValueError, "cuda:NUMBER"):
                device_number(wrong)


if __name__ == "__main__":
    unittest.main()
