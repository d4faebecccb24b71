from .differences import Differences as Differences
from .effects import explain as explain
from .effects import moments_of_pass_rates as moments_of_pass_rates
from .explanation import Explanation as Explanation
from .rewards import RewardGradients as RewardGradients
from .rewards import explain_rewards as explain_rewards
from .schemes import SchemeExplanation as SchemeExplanation
from .schemes import explain_scheme as explain_scheme
