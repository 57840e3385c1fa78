"""Settings of a run: `schema` says what there is, `load` brings the layers together."""

from scalerl.config.load import differences, dump_toml, load_config, recipe_names, recipe_text
from scalerl.config.schema import Config

__all__ = ["Config", "differences", "dump_toml", "load_config", "recipe_names", "recipe_text"]
