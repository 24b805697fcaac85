// SPDX-License-Identifier: Apache-2.0
#include "search/files/json.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace ostinato {
namespace {

TEST(Json, PairsThatBeginWithTextAreAnObject) {
  const Json json = {{"status", 0}, {"names", std::vector<std::string>{"a", "b"}}};
  EXPECT_EQ(json.text(), R"({"status":0,"names":["a","b"]})");
}

TEST(Json, AnythingElseInBracesIsAList) {
  EXPECT_EQ(Json({1, 2, 3}).text(), "[1,2,3]");
  EXPECT_EQ(Json({{1, 2}, {3, 4}}).text(), "[[1,2],[3,4]]");
  EXPECT_EQ(Json({{"a", 1}, {"b"}}).text(), R"([["a",1],["b"]])");
}

TEST(Json, KeysKeepTheOrderInWhichTheyWereAdded) {
  Json json = {{"z", 1}};
  json["a"] = 2;
  json["z"] = 3;
  EXPECT_EQ(json.text(), R"({"z":3,"a":2})");
}

TEST(Json, NullBecomesWhatIsAddedToIt) {
  Json json;
  json["list"].push_back(1);
  json["list"].push_back({{"deep", nullptr}});
  json["object"]["key"] = true;
  EXPECT_EQ(json.text(), R"({"list":[1,{"deep":null}],"object":{"key":true}})");
}

TEST(Json, NothingInItIsStillAListOrAnObject) {
  EXPECT_EQ(Json::array().text(2), "[]");
  EXPECT_EQ(Json::object().text(2), "{}");
  EXPECT_EQ(Json(std::vector<int>()).text(), "[]");
}

TEST(Json, UpdateReplacesAndAdds) {
  Json json = {{"a", 1}, {"b", 2}};
  json.update({{"b", 3}, {"c", 4}});
  EXPECT_EQ(json.text(), R"({"a":1,"b":3,"c":4})");
}

TEST(Json, NumbersAreExact) {
  EXPECT_EQ(Json(std::numeric_limits<std::int64_t>::min()).text(), "-9223372036854775808");
  EXPECT_EQ(Json(std::numeric_limits<std::uint64_t>::max()).text(), "18446744073709551615");
  EXPECT_EQ(Json(0.1).text(), "0.1");
  EXPECT_EQ(Json(2.0).text(), "2.0");
}

TEST(Json, TextIsEscapedAndWhatIsNotUtf8Replaced) {
  EXPECT_EQ(Json("say \"n\"\n").text(), R"("say \"n\"\n")");
  EXPECT_EQ(Json("a\xff").text(), "\"a\xef\xbf\xbd\"");
}

TEST(Json, IndentedAsPeopleReadIt) {
  EXPECT_EQ(Json({{"a", 1}, {"b", {1, 2}}}).text(2), "{\n  \"a\": 1,\n  \"b\": [\n    1,\n    2\n  ]\n}");
}

}  // namespace
}  // namespace ostinato
