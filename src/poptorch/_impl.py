"""How clients take the weight-sync classes off a model, and put them on again."""

from pantile.runtime.instrument import release as unwrapModelIfNecessary

__all__ = ["unwrapModelIfNecessary"]
