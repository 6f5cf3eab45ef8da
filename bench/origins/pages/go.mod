module sluice.test/pages

go 1.19
