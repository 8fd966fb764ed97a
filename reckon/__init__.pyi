# What `__getattr__` of the module answers, for checkers of types and for editors.
from typing import Final

from predictor.errors import InputError as InputError
from reckon.sweeping import sweep as sweep
from reckon.verbs.adapting import adapt as adapt
from reckon.verbs.adapting import suggest as suggest
from reckon.verbs.calibrating import calibrate as calibrate
from reckon.verbs.contrasting import compare as compare
from reckon.verbs.fleets import search_infer as search_infer
from reckon.verbs.judging import check as check
from reckon.verbs.plans import search as search
from reckon.verbs.profiling import profile as profile
from reckon.verbs.results import Prediction as Prediction
from reckon.verbs.runs import read_runs as read_runs
from reckon.verbs.served import ServingResult as ServingResult
from reckon.verbs.serving import predict_infer as predict_infer
from reckon.verbs.tracing import explain as explain
from reckon.verbs.training import predict_train as predict_train
from reckon.verbs.validating import validate as validate
from reckon.verbs.watching import watch as watch

__version__: Final[str]
