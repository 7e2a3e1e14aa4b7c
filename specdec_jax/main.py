"""Temporary."""
import sys, logging as pl
import gin
from absl import logging
from specdec_jax import train
def main():
    logging.set_verbosity(logging.INFO); logging.use_absl_handler()
    pl.getLogger("absl").addFilter(lambda r: "specdec_jax" in r.pathname or r.levelno >= 30)
    files=[a.split("=",1)[1] for a in sys.argv if a.startswith("--gin_file=")]
    binds=[a[len("--gin."):] for a in sys.argv if a.startswith("--gin.")]
    gin.parse_config_files_and_bindings(files, binds)
    import os
    d=gin.query_parameter("%RUN_DIR"); os.makedirs(d,exist_ok=True)
    open(os.path.join(d,"config.gin"),"w").write(gin.config_str())
    gin.get_configurable(train.train)()
main()
