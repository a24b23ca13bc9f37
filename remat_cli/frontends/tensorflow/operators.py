"""What remat knows of TensorFlow's operations by name: which alias memory, read or write variables, or draw numbers.

An operation that TensorFlow does not call stateful computes the same again, so it may be recomputed. Stateful ones run
at most once, but for those that only read variables. Stateful operations that are not listed here are refused.
"""


def _named(text: str) -> frozenset[str]:
    return frozenset(text.split())


ALIASES = _named("""
    Identity IdentityN StopGradient PreventGradient Reshape Squeeze ExpandDims Bitcast EnsureShape CheckNumerics
    Snapshot PlaceholderWithDefault
""")
"""Operations whose outputs are the memory of their inputs, always."""

SLICES = _named("StridedSlice Slice Split SplitV Unpack")
"""Operations that give out parts of the memory of an input, if the parts are aligned."""

MAYBE_ALIASES = SLICES | _named("""
    Pack ConcatV2 Concat Transpose ConjugateTranspose BroadcastTo Tile Cast Sum Mean Max Min Prod All Any AddN Pad
    PadV2 Conj Real Reverse ReverseV2 Roll SpaceToBatchND BatchToSpaceND DepthToSpace SpaceToDepth MirrorPad
    MatrixBandPart
""")
"""Operations that give out the memory of an input for some shapes; a trial with the shapes at hand decides."""

READS = _named("ReadVariableOp VariableShape VarIsInitializedOp ResourceGather ResourceGatherNd")
"""Stateful operations that only read variables."""

SHAPES = _named("Shape ShapeN Size Rank VariableShape")
"""Operations that depend on nothing but the shape of what they read."""

GENERATORS = _named("""
    RngReadAndSkip RngSkip StatefulUniform StatefulUniformInt StatefulUniformFullInt StatefulStandardNormalV2
    StatefulTruncatedNormal StatefulRandomBinomial
""")
"""Operations that draw random numbers from a variable, and write its next state."""

RANDOM = _named("""
    RandomUniform RandomUniformInt RandomStandardNormal TruncatedNormal RandomShuffle Multinomial RandomGamma
    RandomPoissonV2 ParameterizedTruncatedNormal RandomCrop
""")
"""Operations that draw random numbers from a state inside TensorFlow."""

ASSIGNS = _named("""
    AssignVariableOp AssignAddVariableOp AssignSubVariableOp ResourceStridedSliceAssign ResourceScatterAdd
    ResourceScatterSub ResourceScatterMul ResourceScatterDiv ResourceScatterMin ResourceScatterMax
    ResourceScatterUpdate ResourceScatterNdUpdate ResourceScatterNdAdd ResourceScatterNdSub
    ResourceApplyGradientDescent ResourceApplyMomentum ResourceApplyKerasMomentum ResourceApplyAdam
    ResourceApplyAdamWithAmsgrad ResourceApplyAdaMax ResourceApplyAdagrad ResourceApplyAdagradV2
    ResourceApplyAdadelta ResourceApplyRMSProp ResourceApplyCenteredRMSProp ResourceApplyFtrl ResourceApplyFtrlV2
    ResourceApplyProximalGradientDescent ResourceApplyProximalAdagrad ResourceApplyAddSign ResourceApplyPowerSign
    ResourceSparseApplyAdagrad ResourceSparseApplyAdagradV2 ResourceSparseApplyMomentum
    ResourceSparseApplyKerasMomentum ResourceSparseApplyRMSProp ResourceSparseApplyFtrl ResourceSparseApplyFtrlV2
    ResourceSparseApplyAdadelta ResourceSparseApplyCenteredRMSProp
""")
"""Operations that write variables."""

BY_ROWS = frozenset(
    name
    for name in READS | ASSIGNS
    if name.startswith(("ResourceGather", "ResourceScatter", "ResourceSparse", "ResourceStridedSlice"))
)
"""Operations on rows of a variable. After the first one, TensorFlow copies the variable whenever all of it is read."""

CALLS = _named("""
    While StatelessWhile If StatelessIf Case StatelessCase PartitionedCall StatefulPartitionedCall
""")
"""Operations that run functions."""

LEFT_OUT = _named("Assert Print PrintV2 CheckNumericsV2")
"""Operations that only tell something; they are left out, and said so."""

REACHES_OUT = _named("""
    PyFuncStateless ReadFile EncodeProto DecodeProtoV2 XlaLaunch XlaRunOnlineCompile RemoteCall DebugIdentity
    DebugIdentityV2 DebugIdentityV3 DebugNumericSummary DebugNumericSummaryV2 DebugNanCount Copy CopyHost
""")
"""Operations that TensorFlow does not call stateful, though they read files, or run other code."""

STATEFUL = READS | GENERATORS | RANDOM | ASSIGNS | CALLS
"""All stateful operations that graphs may hold."""

LISTS = _named("""
    EmptyTensorList TensorListReserve TensorListPushBack TensorListPopBack TensorListSetItem TensorListGetItem
    TensorListStack TensorListFromTensor TensorListLength TensorListElementShape TensorListConcatV2 TensorListResize
""")
"""Operations on lists of tensors, whose bytes are not known from their type."""
