"""Which operators stand against a determinism level, as a table: operator -> causes, on CPU and on CUDA.

A cause is one way in which bits depend on more than the inputs: the instruction set, the model of the GPU, the order in
which threads arrive. The levels pin some of them; the others stand against D2 (other kinds of device), the worst
against D1 (other numbers of workers). The CPU half rests on 154 calls compared under settings of ATEN, oneDNN and MKL
on one machine; operators that were not called stand with their like. The CUDA half follows torch's list of operators
without a deterministic kernel and how kernels and libraries choose their shape, on the safe side: an operator counts
against D2 unless its result is exact. What is in no list is reported as unknown. Some operators are nondeterministic
for some arguments only; there torch itself refuses the call.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One way in which an operator's bits depend on the device or on chance."""

    name: str
    why: str
    stops: Literal["D1", "D2"]
    """The lowest level that it stands against where nothing pins it."""
    pinned_by: str = ""
    """The setting of that level that takes it away; empty: none does."""
    fix: str = ""
    """What a person can do where nothing pins it."""

    @property
    def open(self) -> bool:
        """Whether it still stands against its level once the level is applied."""
        return not self.pinned_by


_CAUSES = (
    Cause(
        name="mkl",
        why="MKL picks its kernel by the processor (and by the address of the data)",
        stops="D2",
        pinned_by="MKL_CBWR=COMPATIBLE",
    ),
    Cause(
        name="onednn",
        why="oneDNN writes its kernel for the instruction set at hand",
        stops="D2",
        pinned_by="ONEDNN_MAX_CPU_ISA=AVX2",
    ),
    Cause(
        name="vector",
        why="vector code of another width or with fused multiply-add rounds differently",
        stops="D2",
        pinned_by="ATEN_CPU_CAPABILITY=avx2",
    ),
    Cause(
        name="threads",
        why="a sum is cut into one part a thread",
        stops="D1",
        pinned_by="threads=1 (or any fixed number)",
    ),
    Cause(
        name="workspace",
        why="cuBLAS may split a sum by the workspace that is free",
        stops="D1",
        pinned_by="CUBLAS_WORKSPACE_CONFIG=:4096:8",
    ),
    Cause(
        name="autotune",
        why="cuDNN may pick another algorithm from run to run",
        stops="D1",
        pinned_by="cudnn.deterministic, cudnn.benchmark=False",
    ),
    Cause(
        name="scatter",
        why="the fast kernel adds into one place in the order threads arrive",
        stops="D1",
        pinned_by="use_deterministic_algorithms",
    ),
    Cause(
        name="cublas",
        why="cuBLAS picks kernel, tile and split of the sum by the model of the GPU",
        stops="D2",
        fix="keep the job on one model of GPU",
    ),
    Cause(
        name="cudnn",
        why="cuDNN picks its algorithm by the model of the GPU",
        stops="D2",
        fix="keep the job on one model of GPU",
    ),
    Cause(
        name="blocks",
        why="the sum is cut by the number of multiprocessors of the GPU",
        stops="D2",
        fix="keep the job on one model of GPU",
    ),
    Cause(
        name="gpu-math",
        why="exp, log, tanh and the like are approximated by hardware of the GPU's generation",
        stops="D2",
        fix="keep the job on one generation of GPU",
    ),
    Cause(
        name="gpu-random",
        why="which thread draws which number follows the number of multiprocessors",
        stops="D2",
        fix="draw on the CPU and move the result, or keep the job on one model of GPU",
    ),
    Cause(
        name="fused-attention",
        why="fused attention is another kernel on each generation of GPU",
        stops="D2",
        fix="D2 takes the math backend, whose matrix products still depend on the GPU",
    ),
    Cause(
        name="atomics",
        why="threads add into one place in the order they arrive; no fixed-order kernel exists",
        stops="D1",
        fix="replace the operator: torch refuses it at every level",
    ),
    Cause(
        name="unknown",
        why="not in the table of known operators",
        stops="D2",
        fix="compare two kinds of worker with `melodeon diff`",
    ),
)
CAUSES = {cause.name: cause for cause in _CAUSES}

_MATMUL = "mm addmm bmm baddbmm addbmm mv addmv dot vdot addr linear matmul"
_LAPACK = (
    "_linalg_svd linalg_cholesky_ex linalg_inv_ex _linalg_eigh linalg_qr linalg_lu_factor_ex _linalg_solve_ex "
    "linalg_solve_triangular triangular_solve _linalg_slogdet _linalg_det _cdist_forward _cdist_backward"
)
_FFT = "_fft_r2c _fft_c2r _fft_c2c"
_CONV = "convolution convolution_backward mkldnn_convolution cudnn_convolution _slow_conv2d_forward"
_RNN = "mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn _cudnn_rnn_backward lstm gru"
_SOFTMAX = "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data logsumexp _safe_softmax"
_NORMS = (
    "native_layer_norm native_layer_norm_backward native_batch_norm native_batch_norm_backward cudnn_batch_norm "
    "cudnn_batch_norm_backward native_group_norm native_group_norm_backward _native_batch_norm_legit "
    "_batch_norm_with_update batch_norm_backward _fused_rms_norm _fused_rms_norm_backward"
)
_SUMS = (
    "sum mean var std var_mean std_mean norm linalg_vector_norm prod cumsum cumprod logcumsumexp nansum trace col2im "
    "mse_loss smooth_l1_loss huber_loss binary_cross_entropy nll_loss_forward embedding_dense_backward _embedding_bag "
    "_embedding_bag_forward_only _embedding_bag_dense_backward index_add scatter_add scatter_reduce index_put "
    "_index_put_impl_ _unsafe_index_put _amp_foreach_non_finite_check_and_unscale_ max_pool3d_with_indices_backward "
    "replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward"
)
# The operators among these that torch has a second, slower kernel for, with a fixed order.
_SCATTER = (
    "embedding_dense_backward index_add scatter_add scatter_reduce index_put _index_put_impl_ _unsafe_index_put "
    "scatter index_copy max_pool3d_with_indices_backward replication_pad1d_backward replication_pad2d_backward "
    "replication_pad3d_backward"
)
# One rounding or two: with and without fused multiply-add.
_MULTIPLY_ADD = (
    "add sub rsub addcmul lerp _fused_sgd_ _fused_adam_ _fused_adamw_ _fused_adagrad_ mse_loss_backward tanh_backward "
    "sigmoid_backward leaky_relu_backward grid_sampler_2d grid_sampler_3d"
)
_FUNCTIONS = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan tanh sinh cosh asin acos atan atan2 sigmoid erf erfc erfinv "
    "lgamma digamma pow rsqrt silu silu_backward elu elu_backward softplus softplus_backward mish mish_backward "
    "log_sigmoid_forward log_sigmoid_backward logaddexp gelu gelu_backward celu selu glu glu_backward "
    "binary_cross_entropy_with_logits binary_cross_entropy_backward hardsigmoid xlogy _weight_norm_interface"
)
_ATTENTION = (
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward _flash_attention_forward "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward "
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward _flash_attention_backward "
    "_efficient_attention_forward _efficient_attention_backward _scaled_dot_product_fused_attention_overrideable"
)
_CPU_ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward "
    "_scaled_dot_product_attention_math _transform_bias_rescale_qkv"
)
_RANDOM = (
    "randn rand normal uniform bernoulli randint random randperm multinomial exponential native_dropout log_normal "
    "randn_like rand_like randint_like cauchy geometric poisson rrelu_with_noise"
)
_RANDOM_VECTOR = "randn normal randn_like log_normal"
_ATOMICS = (
    "avg_pool3d_backward _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_max_pool2d_backward "
    "fractional_max_pool2d_backward fractional_max_pool3d_backward max_unpool2d max_unpool3d reflection_pad1d_backward "
    "reflection_pad2d_backward reflection_pad3d_backward upsample_linear1d_backward upsample_bilinear2d_backward "
    "upsample_bicubic2d_backward upsample_trilinear3d_backward nll_loss2d_forward nll_loss2d_backward put histc "
    "bincount median cumsum _ctc_loss_backward grid_sampler_2d_backward grid_sampler_3d_backward"
)
# Each result is one rounding, one choice, or one thread's sum in a fixed order.
_EXACT = (
    "mul div neg abs square sqrt reciprocal sign sgn floor ceil round trunc frac fmod remainder maximum minimum clamp "
    "clamp_min clamp_max where relu threshold threshold_backward hardtanh hardtanh_backward leaky_relu hardswish "
    "hardswish_backward hardsigmoid_backward native_dropout_backward masked_fill masked_scatter masked_select fill "
    "zero zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full scalar_tensor arange linspace eye "
    "tril triu copy clone _to_copy cat stack index index_select gather scatter index_copy index_fill embedding repeat "
    "flip roll constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d "
    "replication_pad3d max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices avg_pool2d "
    "avg_pool2d_backward avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_nearest2d_backward upsample_linear1d "
    "upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d im2col amax amin max min argmax argmin aminmax sort "
    "topk eq ne lt le gt ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not "
    "bitwise_xor isnan isinf isfinite any all nonzero _unique2 _local_scalar_dense equal addcdiv nll_loss_backward "
    "smooth_l1_loss_backward huber_loss_backward slice_backward select_backward slice_scatter select_scatter "
    "_assert_async _amp_update_scale_ searchsorted bucketize nan_to_num unfold_backward take repeat_interleave "
    "unsafe_split unsafe_split_with_sizes unsafe_chunk"
)


def _table(*rows: tuple[str, str]) -> dict[str, tuple[str, ...]]:
    """Operators' causes, an operator's rows added up; `rows` are (causes, operators), both separated by blanks."""
    table: dict[str, tuple[str, ...]] = {}
    for causes, operators in rows:
        for operator in operators.split():
            name = _base(operator)
            table[name] = tuple(dict.fromkeys([*table.get(name, ()), *causes.split()]))
    return table


def _base(op: str) -> str:
    """The operator's name without namespace, overload and variant: `aten._foreach_add_.Scalar` -> `add`."""
    parts = op.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return name.removeprefix("_foreach_").strip("_")


_TABLES: dict[Device, dict[str, tuple[str, ...]]] = {
    "cpu": _table(
        ("", _EXACT),
        ("", _RANDOM),
        ("vector", _RANDOM_VECTOR),
        ("mkl", _MATMUL),
        ("mkl", _LAPACK),
        ("mkl", _FFT),
        ("onednn threads", _CONV),
        ("onednn mkl threads", _RNN),
        ("vector", _SOFTMAX),
        ("vector threads", _NORMS),
        ("threads", _SUMS),
        ("threads", _ATOMICS),
        ("vector", _MULTIPLY_ADD),
        ("vector", _FUNCTIONS),
        ("onednn", "gelu gelu_backward"),
        ("vector mkl", _CPU_ATTENTION),
        ("vector", "_ctc_loss _ctc_loss_backward"),
        # bf16 products go to oneDNN instead of MKL.
        ("onednn", _MATMUL),
    ),
    "cuda": _table(
        ("", _EXACT),
        ("", _MULTIPLY_ADD),
        ("gpu-random", _RANDOM),
        ("cublas workspace", _MATMUL),
        ("cublas", _LAPACK),
        ("cublas", _FFT),
        ("cudnn autotune", _CONV),
        ("cudnn autotune", _RNN),
        ("scatter", _SCATTER),
        ("blocks gpu-math", _SOFTMAX),
        ("blocks gpu-math", _NORMS),
        ("blocks", _SUMS),
        ("gpu-math", _FUNCTIONS),
        ("fused-attention", _ATTENTION),
        ("fused-attention", _CPU_ATTENTION),
        ("atomics", _ATOMICS),
        ("blocks gpu-math", "_ctc_loss"),
    ),
}


def causes_of(op: str, device: Device) -> tuple[Cause, ...]:
    """Why `op` (such as `aten.addmm.default`) may give other bits elsewhere; empty: it gives the same anywhere."""
    return tuple(CAUSES[name] for name in _TABLES[device].get(_base(op), ("unknown",)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One operator of one module, with what it means for the levels."""

    module: str
    op: str
    count: int
    share: float
    """Of the time of all operators of the step."""
    causes: tuple[Cause, ...]

    @property
    def stops(self) -> str:
        """The lowest level that it stands against although the level pins what it can; empty: none."""
        return min((cause.stops for cause in self.causes if cause.open), default="")

    @property
    def pinned(self) -> bool:
        """Whether its bits depend on the device and the levels pin all of it."""
        return bool(self.causes) and not self.stops


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What a scan means on one kind of device."""

    device: Device
    findings: tuple[Finding, ...]
    """The operators that depend on the device at all, those that stop a level first, then by time."""
    num_operators: int
    """Pairs of module and operator in the step, exact ones included."""

    def stopping(self, level: str) -> tuple[Finding, ...]:
        """What stands against `level`."""
        return tuple(finding for finding in self.findings if finding.stops and finding.stops <= level)

    def verdict(self, level: str) -> str:
        """One sentence: whether the level can be promised on this device, and why."""
        where = f"{level} on {self.device.upper()}"
        stopping = self.stopping(level)
        if stopping:
            names = list(dict.fromkeys(finding.op.split(".")[1] for finding in stopping))
            shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            share = sum(finding.share for finding in stopping)
            many = "1 operator" if len(names) == 1 else f"{len(names)} operators"
            return f"{where}: no: {many} ({share:.0%} of the time) may give other bits elsewhere: {shown}"
        pins = [cause for finding in self.findings for cause in finding.causes if cause.stops <= level]
        if not pins:
            return f"{where}: yes: every operator gives the same bits anywhere"
        names = list(dict.fromkeys(f.op for f in self.findings if any(cause.stops <= level for cause in f.causes)))
        settings = ", ".join(dict.fromkeys(cause.pinned_by for cause in pins))
        many = "1 operator" if len(names) == 1 else f"{len(names)} operators"
        return f"{where}: yes, pinned: {many} would give other bits elsewhere, held by {settings}"


def assess(rows: Iterable[Mapping[str, Any]], device: Device) -> Assessment:
    """Judge a scan's rows as if they ran on `device`; phases of one module and operator are taken together."""
    counts: dict[tuple[str, str], tuple[int, float]] = {}
    for row in rows:
        key = (str(row["module"]), str(row["op"]))
        count, share = counts.get(key, (0, 0.0))
        counts[key] = (count + int(row["count"]), share + float(row["share"]))
    found = [
        Finding(module=module, op=op, count=count, share=share, causes=causes_of(op, device))
        for (module, op), (count, share) in counts.items()
    ]
    found.sort(key=lambda finding: (finding.stops or "D9", -finding.share))
    return Assessment(
        device=device, findings=tuple(finding for finding in found if finding.causes), num_operators=len(found)
    )
