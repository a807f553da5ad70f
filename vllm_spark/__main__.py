"""`python -m vllm_spark`."""

import sys

from vllm_spark.cli.main import main

sys.exit(main())
