"""Tables and pages made from run folders."""
