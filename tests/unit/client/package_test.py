"""The Python package without a service."""

import ctypes
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import headrace
import numpy
from headrace import dtypes, errors, layout, library
from headrace.arena import aligned, bytes_for

try:
    import torch
except ImportError:
    torch = None

HEADER = pathlib.Path(__file__).parents[3] / "client/include/headrace/headrace.h"


class FindingTheLibrary(unittest.TestCase):
    def test_the_environment_names_the_only_candidate(self):
        with mock.patch.dict(os.environ, {"HEADRACE_LIBRARY": "/a/b.so"}):
            self.assertEqual(library.candidates(), [pathlib.Path("/a/b.so")])

    def test_install_tree_and_build_tree_are_candidates(self):
        with mock.patch.dict(os.environ):
            os.environ.pop("HEADRACE_LIBRARY", None)
            candidates = [str(path) for path in library.candidates()]
        root = HEADER.parents[3]
        self.assertIn(str(root / "build/release/libheadrace.so"), candidates)
        self.assertIn(str(root / "lib/libheadrace.so"), candidates)

    def test_a_missing_library_is_named_with_the_remedy(self):
        program = "import headrace; headrace.version()"
        environment = dict(os.environ, HEADRACE_LIBRARY="/nowhere/libheadrace.so")
        environment.pop("LD_PRELOAD", None)
        run = subprocess.run(
            [sys.executable, "-B", "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(run.returncode, 1)
        self.assertIn("/nowhere", run.stderr)
        self.assertIn("HEADRACE_LIBRARY", run.stderr)


class TheHeader(unittest.TestCase):
    """What ctypes is told must be what the C compiler sees."""

    def test_structures_have_the_compilers_sizes(self):
        names = {
            "hr_options": library.Options,
            "hr_error": library.ErrorText,
            "hr_tensor_spec": library.TensorSpec,
            "hr_range": library.ElementRange,
            "hr_layout_options": library.LayoutOptions,
            "hr_counters": library.Counters,
        }
        words = {"hr_array": 2, "hr_piece": 3}  # of 64 bits, as packed() makes them
        offsets = [
            ("hr_array", "count"),
            ("hr_piece", "offset"),
            ("hr_piece", "count"),
            ("hr_options", "spin_us"),
            ("hr_options", "rendezvous"),
            ("hr_options", "architecture"),
            ("hr_options", "sends_class"),
            ("hr_options", "slow_evict"),
            ("hr_tensor_spec", "order"),
            ("hr_layout_options", "policy"),
        ]
        body = "".join(f'printf("%zu\\n", sizeof({name}));' for name in (*names, *words))
        body += "".join(f'printf("%zu\\n", offsetof({s}, {f}));' for s, f in offsets)
        program = f"#include <{HEADER}>\n#include <stdio.h>\nint main(void) {{{body}}}"
        with tempfile.TemporaryDirectory() as folder:
            binary = os.path.join(folder, "sizes")
            environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
            subprocess.run(
                ["cc", "-x", "c", "-o", binary, "-"],
                input=program,
                text=True,
                check=True,
                env=environment,
            )
            printed = subprocess.check_output(
                [binary], text=True, env=environment
            ).split()
        expected = [ctypes.sizeof(structure) for structure in names.values()]
        expected += [len(library.packed(count, range(count))) for count in words.values()]
        expected += [8, 8, 16]
        expected += [getattr(names[s], f).offset for s, f in offsets if s in names]
        self.assertEqual([int(number) for number in printed], expected)

    def test_every_function_of_the_header_that_python_needs_exists(self):
        self.assertEqual(headrace.version(), "0.1.0")


class ElementTypes(unittest.TestCase):
    def test_names_come_from_numpy_and_from_text(self):
        for dtype in ("float32", numpy.float32, numpy.dtype("float32")):
            self.assertEqual(dtypes.dtype_name(dtype), "float32")
        with self.assertRaisesRegex(TypeError, "complex64.*float32"):
            dtypes.dtype_name(numpy.complex64)

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_names_come_from_torch(self):
        self.assertEqual(dtypes.dtype_name(torch.bfloat16), "bfloat16")
        with self.assertRaisesRegex(TypeError, "int8"):
            dtypes.dtype_name(torch.int8)

    def test_sizes_are_numpys(self):
        for name in ("float32", "float64", "float16", "int32", "int64", "uint8"):
            self.assertEqual(dtypes.dtype_size(name), numpy.dtype(name).itemsize)

    def test_an_unknown_reduction_is_refused_by_name(self):
        with self.assertRaisesRegex(ValueError, '"mean".*average'):
            dtypes.reduction_number("mean")

    def test_arrays_must_take_results_in_place(self):
        array = numpy.zeros((4, 4), numpy.float32)
        self.assertEqual(dtypes.array_of(array)[1:], (16, "float32"))
        with self.assertRaisesRegex(ValueError, "contiguous"):
            dtypes.array_of(array[:, 1])
        array.flags.writeable = False
        with self.assertRaisesRegex(ValueError, "writable"):
            dtypes.array_of(array)
        with self.assertRaisesRegex(TypeError, "list"):
            dtypes.array_of([1.0])

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_torch_tensors_must_be_contiguous(self):
        tensor = torch.zeros(4, 6)
        self.assertEqual(dtypes.array_of(tensor), (tensor.data_ptr(), 24, "float32"))
        with self.assertRaisesRegex(ValueError, "contiguous"):
            dtypes.array_of(tensor.t())


class Errors(unittest.TestCase):
    def test_each_status_has_its_class(self):
        self.assertIsInstance(errors.make("t", "timeout", 8), headrace.Timeout)
        self.assertIsInstance(errors.make("t", "mismatch", 9), headrace.Mismatch)
        self.assertIsInstance(errors.make("t", "peer lost", 10), headrace.PeerLost)
        self.assertIsInstance(errors.make("t", "unavailable", 6), headrace.Unavailable)
        self.assertIs(type(errors.make("t", "exhausted", 12)), headrace.Error)

    def test_calls_that_texts_advise_have_pythons_names(self):
        texts = "".join(path.read_text() for path in HEADER.parents[2].glob("lib/*.cc"))
        literals = re.findall(r'"(?:[^"\\\n]|\\.)*"', texts)
        named = {call for each in literals for call in re.findall(r"\bhr_\w+", each)}
        self.assertIn("hr_session_reconnect", named)
        for call in named:
            self.assertNotIn("hr_", str(errors.make(f"call {call}", "", 1)), call)
        error = errors.make("drained by uid 0", "cancelled", 13)
        self.assertIs(type(error), headrace.Cancelled)

    def test_they_survive_a_pipe(self):
        error = pickle.loads(pickle.dumps(errors.make("why", "peer lost", 10)))
        self.assertIsInstance(error, headrace.PeerLost)
        self.assertEqual(
            (str(error), error.code, error.number), ("why", "peer lost", 10)
        )

    def test_an_absent_service_is_named_with_the_remedy(self):
        with self.assertRaisesRegex(
            headrace.Unavailable, "/nowhere/s.*headrace run -- COMMAND.*systemctl enable --now headraced"
        ) as raised:
            headrace.init("j", 0, 1, "/nowhere/s")
        self.assertEqual(raised.exception.code, "unavailable")

    def test_what_is_missing_is_named(self):
        with mock.patch.dict(os.environ, clear=True):
            with self.assertRaisesRegex(headrace.Error, "HEADRACE_JOB"):
                headrace.init()
            with self.assertRaisesRegex(headrace.Error, "RANK"):
                headrace.init(job="j")

    def test_a_wrong_environment_counts_only_where_it_is_asked(self):
        with mock.patch.dict(os.environ, {"RANK": "two"}):
            with self.assertRaisesRegex(headrace.Error, 'RANK="two"'):
                headrace.init(job="j")
            with self.assertRaises(headrace.Unavailable):
                headrace.init("j", 0, 1, "/nowhere/s")

    def test_names_that_do_not_fit_are_refused(self):
        with self.assertRaisesRegex(ValueError, "64 bytes, 63"):
            headrace.init("j" * 64, 0, 1, "/nowhere/s")

    def test_the_rendezvous_is_torchruns_only_when_the_job_spans_nodes(self):
        torchrun = {
            "RANK": "0",
            "WORLD_SIZE": "4",
            "MASTER_ADDR": "node1",
            "MASTER_PORT": "29500",
        }
        for local, expected in (("4", b""), ("2", b"node1")):
            with mock.patch.dict(os.environ, torchrun, LOCAL_WORLD_SIZE=local):
                options = library.Options()
                self.assertEqual(library.fill(options, library.ErrorText()), 0)
                self.assertEqual(options.rendezvous, expected)

    def test_a_wrong_rendezvous_or_architecture_is_refused_by_name(self):
        with self.assertRaisesRegex(headrace.Error, 'rendezvous "node 1"'):
            headrace.init("j", 0, 1, "/nowhere/s", rendezvous="node 1")
        with self.assertRaisesRegex(headrace.Error, 'architecture "ring".*all-reduce'):
            headrace.init("j", 0, 1, "/nowhere/s", architecture="ring")
        with self.assertRaisesRegex(ValueError, "256 bytes, 255"):
            headrace.init("j", 0, 1, "/nowhere/s", rendezvous="r" * 256)


class LayoutSizes(unittest.TestCase):
    def test_gradients_lie_behind_each_other_without_gaps(self):
        self.assertEqual(
            layout._packed([3, 1, 5], ["float16"] * 3), ([0, 6, 8], 18)
        )

    def test_a_policy_that_does_not_fit_is_refused(self):
        self.assertEqual(layout._name("policy", "us-byte"), b"us-byte")
        with self.assertRaisesRegex(ValueError, "32 bytes, 31"):
            layout._name("policy", "p" * 32)


class ArenaSizes(unittest.TestCase):
    def test_tensors_do_not_share_a_cache_line(self):
        self.assertEqual([aligned(n) for n in (0, 1, 64, 65)], [0, 64, 64, 128])
        specs = [((3,), "float32"), ((), "float64"), ((33,), "float16")]
        self.assertEqual(bytes_for(specs), 64 + 64 + 128)


if __name__ == "__main__":
    unittest.main()
