-- Each of wrk's threads runs as its own user. The routing rules of the namespace select the source
-- address by this user. The last line of the output is the results as JSON.

local ffi = require("ffi")
ffi.cdef("int setfsuid(unsigned int);")

local first = tonumber(os.getenv("BENCH_FIRST_USER"))
local users = tonumber(os.getenv("BENCH_USERS"))
local started = 0

function setup(thread)
    thread:set("user", first + started % users)
    started = started + 1
end

local prepare = wrk.init

-- wrk calls wrk.init before its threads run, and wrk.request once in each of them. This script
-- defines no function named request, because wrk would call that function for every request.
function wrk.init(args)
    prepare(args)
    local request = wrk.request()
    wrk.request = function()
        ffi.C.setfsuid(user)
        return request
    end
end

function done(summary, latency, requests)
    local errors = summary.errors
    io.write(string.format(
        '{"requests": %d, "microseconds": %d, "p50": %d, "p99": %d, "max": %d, '
            .. '"connect": %d, "read": %d, "write": %d, "status": %d, "timeout": %d}\n',
        summary.requests, summary.duration,
        latency:percentile(50), latency:percentile(99), latency.max,
        errors.connect, errors.read, errors.write, errors.status, errors.timeout))
end
