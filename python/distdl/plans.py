"""``python -m distdl.plans``: whether a model fits on a machine. In Python ``distdl.plans`` is the function."""

import sys

from distdl.models.plans_command import main
from distdl.models.proposals import plans

if __name__ == "__main__":
    main()
else:  # what imports all modules of the package keeps the function under this name
    sys.modules[__name__] = plans  # type: ignore[assignment]
