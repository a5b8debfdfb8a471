"""Any PyTorch model in one call: recorded, split by rules for each operation, and run on blocks."""

from distdl.models.distributing import distribute
from distdl.models.model import DistributedModel
from distdl.models.operations.table import rule_for as rule
from distdl.models.plan.machine import Machine
from distdl.models.proposal_table import Proposal, Proposals
from distdl.models.proposals import plans
from distdl.models.report import Report, report
from distdl.models.scattering import gather, scatter

__all__ = [
    "DistributedModel",
    "Machine",
    "Proposal",
    "Proposals",
    "Report",
    "distribute",
    "gather",
    "plans",
    "report",
    "rule",
    "scatter",
]
