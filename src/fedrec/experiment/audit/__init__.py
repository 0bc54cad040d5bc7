"""Audits: does an experiment measure what it claims to measure?"""

from fedrec.experiment.audit.case import Case, from_protocol
from fedrec.experiment.audit.files import from_files
from fedrec.experiment.audit.finding import Finding
from fedrec.experiment.audit.leak import CHECKS, Check, Report, audit

__all__ = ["CHECKS", "Case", "Check", "Finding", "Report", "audit", "from_files", "from_protocol"]
