module sluice.test/origin

go 1.19
