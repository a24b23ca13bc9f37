"""What remat knows of TensorFlow's operations by name: which look at memory, read or write variables, or draw numbers.

An operation that TensorFlow does not call stateful computes the same again, so it may be recomputed. Stateful ones run
at most once, but for those that only read variables. Stateful operations that are not listed here are refused.
"""

from __future__ import annotations

LOOKS = frozenset(
    """Identity IdentityN StopGradient PreventGradient Reshape Squeeze ExpandDims Bitcast EnsureShape CheckNumerics
    Snapshot PlaceholderWithDefault""".split()
)
"""Operations whose outputs are the memory of their inputs, always."""

SLICES = frozenset("StridedSlice Slice Split SplitV Unpack".split())
"""Operations that give out parts of the memory of an input, if the parts are aligned."""

MAYBE_LOOKS = SLICES | frozenset(
    """Pack ConcatV2 Concat Transpose ConjugateTranspose BroadcastTo Tile Cast Sum Mean Max Min Prod All Any AddN Pad
    PadV2 Conj Real Reverse ReverseV2 Roll SpaceToBatchND BatchToSpaceND DepthToSpace SpaceToDepth MirrorPad
    MatrixBandPart""".split()
)
"""Operations that give out the memory of an input for some shapes; a trial with the shapes at hand decides."""

READS = frozenset("ReadVariableOp VariableShape VarIsInitializedOp ResourceGather ResourceGatherNd".split())
"""Stateful operations that only read variables."""

SHAPES = frozenset("Shape ShapeN Size Rank VariableShape".split())
"""Operations that depend on nothing but the shape of what they read."""

GENERATORS = frozenset(
    """RngReadAndSkip RngSkip StatefulUniform StatefulUniformInt StatefulUniformFullInt StatefulStandardNormalV2
    StatefulTruncatedNormal StatefulRandomBinomial""".split()
)
"""Operations that draw random numbers from a variable, and write its next state."""

RANDOM = frozenset(
    """RandomUniform RandomUniformInt RandomStandardNormal TruncatedNormal RandomShuffle Multinomial RandomGamma
    RandomPoissonV2 ParameterizedTruncatedNormal RandomCrop""".split()
)
"""Operations that draw random numbers from a state inside TensorFlow."""

ASSIGNS = frozenset(
    """AssignVariableOp AssignAddVariableOp AssignSubVariableOp ResourceStridedSliceAssign ResourceScatterAdd
    ResourceScatterSub ResourceScatterMul ResourceScatterDiv ResourceScatterMin ResourceScatterMax ResourceScatterUpdate
    ResourceScatterNdUpdate ResourceScatterNdAdd ResourceScatterNdSub ResourceApplyGradientDescent
    ResourceApplyMomentum ResourceApplyKerasMomentum ResourceApplyAdam ResourceApplyAdamWithAmsgrad ResourceApplyAdaMax
    ResourceApplyAdagrad ResourceApplyAdagradV2 ResourceApplyAdadelta ResourceApplyRMSProp ResourceApplyCenteredRMSProp
    ResourceApplyFtrl ResourceApplyFtrlV2 ResourceApplyProximalGradientDescent ResourceApplyProximalAdagrad
    ResourceApplyAddSign ResourceApplyPowerSign ResourceSparseApplyAdagrad ResourceSparseApplyAdagradV2
    ResourceSparseApplyMomentum ResourceSparseApplyKerasMomentum ResourceSparseApplyRMSProp ResourceSparseApplyFtrl
    ResourceSparseApplyFtrlV2 ResourceSparseApplyAdadelta ResourceSparseApplyCenteredRMSProp""".split()
)
"""Operations that write variables."""

CALLS = frozenset(
    "While StatelessWhile If StatelessIf Case StatelessCase PartitionedCall StatefulPartitionedCall SymbolicGradient".split()
)
"""Operations that run functions."""

LEFT_OUT = frozenset("Assert Print PrintV2 CheckNumericsV2".split())
"""Operations that only tell something; they are left out, and said so."""

REACHES_OUT = frozenset(
    """PyFuncStateless ReadFile EncodeProto DecodeProtoV2 XlaLaunch XlaRunOnlineCompile RemoteCall DebugIdentity
    DebugIdentityV2 DebugIdentityV3 DebugNumericSummary DebugNumericSummaryV2 DebugNanCount Copy CopyHost
    StatelessRandomGetAlg""".split()
) - {"StatelessRandomGetAlg"}
"""Operations that TensorFlow does not call stateful, though they read files, or run other code."""

STATEFUL = READS | GENERATORS | RANDOM | ASSIGNS | CALLS
"""All stateful operations that graphs may hold."""

LISTS = frozenset(
    """EmptyTensorList TensorListReserve TensorListPushBack TensorListPopBack TensorListSetItem TensorListGetItem
    TensorListStack TensorListFromTensor TensorListLength TensorListElementShape TensorListConcatV2
    TensorListResize""".split()
)
"""Operations on lists of tensors, whose bytes are not known from their type."""
