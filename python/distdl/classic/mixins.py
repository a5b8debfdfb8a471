"""The base classes that old layers mixed in. Our layers need none of them: these are empty."""


class ConvMixin:
    """Mixed into layers of convolution."""


class HaloMixin:
    """Mixed into layers with halos."""


class InterpolateMixin:
    """Mixed into layers of interpolation."""


class PoolingMixin:
    """Mixed into layers of pooling."""
