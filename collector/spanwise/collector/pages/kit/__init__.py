"""What pages are made of, whatever they show: rendering, layouts of values, chips, charts, the filter form."""
