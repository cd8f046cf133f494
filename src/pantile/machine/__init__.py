"""The modelled machine: does a Program fit on IPUs, where does its time go, how fast on N."""
